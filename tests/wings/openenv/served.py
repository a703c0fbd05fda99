"""A real OpenEnv server with a small environment: hot or cold, towards a number between 0 and 9.

python served.py PORT
"""

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    number: str


class Hint(Observation):
    hint: str
    left: list[str]
    truncated: bool = False


class Hidden(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.wanted, self.tried = 0, []

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.wanted, self.tried = (seed or 0) % 10, []
        return self.seen("guess", False, 0.0)

    def step(self, action, timeout_s=None, **kwargs):
        number = int(action.number)
        self.tried.append(number)
        if len(self.tried) == 6:  # the server's own limit
            return Hint(hint="enough", left=[], done=True, reward=1.0, truncated=True)
        hint = "higher" if number < self.wanted else "lower" if number > self.wanted else "found"
        return self.seen(hint, number == self.wanted, 1.0 if number == self.wanted else -0.1)

    def seen(self, hint, done, reward):
        left = [str(n) for n in range(10) if n not in self.tried]
        return Hint(hint=hint, left=left, done=done, reward=reward)

    @property
    def state(self):
        return State(episode_id="hidden", step_count=len(self.tried))


if __name__ == "__main__":
    app = create_fastapi_app(Hidden, Guess, Hint, max_concurrent_envs=40)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")

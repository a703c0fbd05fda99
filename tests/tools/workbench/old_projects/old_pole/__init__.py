"""CartPole-v1 of gymnasium in words. Each EDIT says what you may want to change."""

from dataclasses import replace

from reflectrl.core.envs.adapter import GymTextEnv


class OldPole(GymTextEnv):
    # EDIT: the horizon is the largest number of steps of an episode; CartPole-v1 may end earlier.
    def __init__(self, horizon: int = 100) -> None:
        actions = ("push left", "push right", )
        super().__init__("CartPole-v1", actions, horizon, name="old_pole")

    # A task is a seed. What the last episode was paid for is forgotten when a new one begins.
    def begin(self, task):
        self.rewarded = set()
        super().begin(task)

    # EDIT: the text that players see. Say what the numbers mean, and leave out what does not matter.
    def describe(self, observation, info):
        values = [f"value {i} is {value:.2f}" for i, value in enumerate(observation.ravel())]
        return ", ".join(values) + "."

    # EDIT: which ends are won. Every end of random play paid more than 0, so none counts here: to last is to win.
    def won(self, observation, reward, info):
        return False

    # EDIT: reward on the way. Without it, a win has to happen by chance before anything is learned.
    def apply(self, action):
        outcome = super().apply(action)
        # if ... and "half-way" not in self.rewarded:  # once an episode, or it would be collected for ever
        #     self.rewarded.add("half-way")
        #     outcome = replace(outcome, reward=outcome.reward + 0.3)
        if self.elapsed + 1 == self.horizon and not outcome.terminated:
            outcome = replace(outcome, terminated=True, success=True, events=(*outcome.events, "lasted"))
        return outcome

    # EDIT: leave out actions that do nothing now; the fewer there are, the sooner the rest is learned.
    def legal_actions(self):
        return super().legal_actions()

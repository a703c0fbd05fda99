"""FrozenLake-v1 of gymnasium in words. Each EDIT says what you may want to change."""

from dataclasses import replace

from reflectrl.core.envs.adapter import GymTextEnv


class OldLake(GymTextEnv):
    # EDIT: the horizon is the largest number of steps of an episode; FrozenLake-v1 may end earlier.
    def __init__(self, horizon: int = 100) -> None:
        actions = ("left", "down", "right", "up", )
        super().__init__("FrozenLake-v1", actions, horizon, name="old_lake")

    # A task is a seed. What the last episode was paid for is forgotten when a new one begins.
    def begin(self, task):
        self.rewarded = set()
        super().begin(task)

    # EDIT: players see the environment's own drawing. Words are often shorter, and learned sooner.
    def describe(self, observation, info):
        return super().describe(observation, info)

    # EDIT: which ends are won.
    def won(self, observation, reward, info):
        return reward > 0

    # EDIT: reward on the way. Without it, a win has to happen by chance before anything is learned.
    def apply(self, action):
        outcome = super().apply(action)
        # if ... and "half-way" not in self.rewarded:  # once an episode, or it would be collected for ever
        #     self.rewarded.add("half-way")
        #     outcome = replace(outcome, reward=outcome.reward + 0.3)
        return outcome

    # EDIT: leave out actions that do nothing now; the fewer there are, the sooner the rest is learned.
    def legal_actions(self):
        return super().legal_actions()

"""MiniGrid-Empty-5x5-v0 of gymnasium in words. Each EDIT says what you may want to change."""

from dataclasses import replace

import minigrid  # noqa: F401  (registers the ids)

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.wings.babyai.view import View


class OldGrid(GymTextEnv):
    not_saved = ("view",)  # made again when an episode is replayed

    # EDIT: the horizon is the largest number of steps of an episode; MiniGrid-Empty-5x5-v0 may end earlier.
    def __init__(self, horizon: int = 100) -> None:
        actions = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done", )
        super().__init__("MiniGrid-Empty-5x5-v0", actions, horizon, name="old_grid")

    # A task is a seed. What the last episode was paid for is forgotten when a new one begins.
    def begin(self, task):
        self.rewarded = set()
        self.view = None
        super().begin(task)

    # EDIT: the text that players see: what is in view, what was seen before, what is carried.
    def describe(self, observation, info):
        if self.view is None:
            self.view = View(self.wrapped)
        self.view.look()
        return "\n".join([f"Goal: {self.wrapped.mission}.", *self.view.sentences(memory=True)])

    # EDIT: which ends are won.
    def won(self, observation, reward, info):
        return reward > 0

    # EDIT: reward on the way. Without it, a win has to happen by chance before anything is learned.
    def apply(self, action):
        outcome = super().apply(action)
        held, ahead = self.wrapped.carrying, self.wrapped.grid.get(*self.wrapped.front_pos)
        reached = set()
        if held is not None:
            reached.add(f"took a {held.type}")
        if action == "toggle" and getattr(ahead, "is_open", False):
            reached.add("opened a door")
        # Each is paid once an episode: else dropping a thing and taking it again would pay for ever.
        new = reached - self.rewarded
        self.rewarded |= new
        return replace(outcome, reward=outcome.reward + 0.3 * len(new), events=(*outcome.events, *sorted(new)))

    # EDIT: leave out actions that do nothing now; the fewer there are, the sooner the rest is learned.
    def legal_actions(self):
        return tuple(name for name in self.names if name != "done")  # no task of minigrid needs it

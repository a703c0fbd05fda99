"""Partial observation with memory: find the dark room, unplug the shorted device, reset the breaker, sign off."""

from itertools import product

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.core.types import Task

ROOMS = ("kitchen", "study", "bedroom", "workshop")
DEVICES = ("kettle", "lamp", "heater", "radio", "fan", "drill")


class Fusebox(TextEnv):
    """Four rooms, one of them dark, with two devices in it. Testing a device shows which one is shorted.

    Only the log says what was seen elsewhere, so the player has to remember.
    """

    def __init__(self, horizon: int = 15) -> None:
        super().__init__(horizon)
        cases = [case for case in product(ROOMS, DEVICES, DEVICES) if case[1] != case[2]]
        self.cases = divide(cases, {"train": 80, "validation": 15, "test": 25}, "fusebox")

    def tasks(self, split, stage=None):
        require_known("fusebox", "split", split, SPLITS)
        require_known("fusebox", "stage", stage or "full", self.stages)
        return [Task("-".join(case), "fusebox", {"case": list(case)}, split) for case in self.cases[split]]

    def begin(self, task):
        self.dark, self.shorted, self.sound = task.payload["case"]
        self.room, self.log = "hall", "A room has no light.\n"
        self.unplugged, self.tested, self.live = set(), set(), False

    def apply(self, action):
        verb, _, rest = action.partition(" ")
        if verb == "enter":
            self.room = rest
            if rest != "hall":
                self.log += f"The {rest} is {'dark' if rest == self.dark and not self.live else 'lit'}.\n"
        elif verb == "test":
            self.tested.add(rest)
            self.log += f"The {rest} is {'shorted' if rest == self.shorted else 'sound'}.\n"
        elif verb == "unplug":
            self.unplugged.add(rest)
            self.log += f"The {rest} is unplugged.\n"
            return Outcome(-0.02 if rest == self.shorted else -0.2)
        elif action == "flip breaker":
            self.live = self.shorted in self.unplugged
            self.log += f"The breaker {'holds' if self.live else 'trips'}.\n"
            return Outcome(-0.02 if self.live else -0.2)
        elif action == "sign off":
            return Outcome(1.0 if self.live else -1.0, terminated=True, success=self.live)
        return Outcome(-0.02)

    def history(self):
        return self.log

    def state(self):
        devices = ""
        if self.room == self.dark:
            pair = [name for name in DEVICES if name in (self.shorted, self.sound)]
            devices = f" Here: {' and '.join(pair)}."
        return f"You are in the {self.room}.{devices}\n"

    def legal_actions(self):
        actions = [f"enter {room}" for room in ("hall", *ROOMS) if room != self.room]
        if self.room == self.dark:
            pair = [name for name in DEVICES if name in (self.shorted, self.sound)]
            actions += [f"{verb} {name}" for name in pair if name not in self.unplugged for verb in ("test", "unplug")]
        if self.room == "hall":
            actions += ["flip breaker", "sign off"]
        return [*actions, "wait"]


def best(env):
    """Return the next action of a player that reads the same text: search, test, unplug, flip, sign off."""
    if env.live:
        return "sign off" if env.room == "hall" else "enter hall"
    if env.shorted in env.unplugged:
        return "flip breaker" if env.room == "hall" else "enter hall"
    if env.room != env.dark:
        return next(f"enter {room}" for room in ROOMS if f"The {room} is lit" not in env.log)
    pair = [name for name in DEVICES if name in (env.shorted, env.sound)]
    if env.shorted in env.tested or env.sound in env.tested:
        return f"unplug {env.shorted}"
    return f"test {pair[0]}"

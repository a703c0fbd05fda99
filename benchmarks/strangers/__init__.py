"""Strangers: small environments of different kinds, for which no setting of the package was made by hand.

Each file is a project as `reflectrl init` begins it: one class, whose default arguments are the environment, and a
function `best` that plays it as well as anybody here can. The first twelve were looked at while the learner was
developed: eight from the beginning, four after they had shown what was wrong with it. The last four, whose author had
not seen the learner, were played only at the end.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from reflectrl.core.envs.base import TextEnv


class Stranger(NamedTuple):
    """An environment of the bench.

    Attributes:
        kind: the difficulty that it stands for.
        class_name: name of the class in the file of the stranger's name.
        held_out: True if nothing was developed on it.
        looks_up: True for the three look-up games, with which reading is tested (docs/results/reading.md).
    """

    kind: str
    class_name: str
    held_out: bool = False
    looks_up: bool = False


STRANGERS = {
    "fusebox": Stranger("partial observation with memory", "Fusebox"),
    "long_corridor": Stranger("long horizon, one reward", "LongCorridor"),
    "berries": Stranger("deceptive reward", "Berries"),
    "switchboard": Stranger("forty actions", "Switchboard"),
    "scales": Stranger("numbers to compare", "Scales"),
    "dice": Stranger("chance", "Dice"),
    "cliff": Stranger("gymnasium's CliffWalking", "Cliff"),
    "doorkey": Stranger("MiniGrid in words, one reward", "Doorkey"),
    "market": Stranger("actions whose texts vary", "Market"),
    "bakery": Stranger("two stages", "Bakery"),
    "lake": Stranger("a game of TextArena", "Lake"),
    "castle": Stranger("keys and doors by walking", "Castle"),
    "ferry": Stranger("a planning puzzle", "Ferry", held_out=True),
    "detective": Stranger("deduction by elimination", "Detective", held_out=True),
    "pantry": Stranger("stock control with a delay", "Pantry", held_out=True),
    "mailroom": Stranger("rules stated in the text", "Mailroom", held_out=True),
    "apothecary": Stranger("a look-up, value before key", "Apothecary", looks_up=True),
    "coat_check": Stranger("a look-up of eight entries, question first", "CoatCheck", looks_up=True),
    "embassy": Stranger("a look-up whose answer has another name as an action", "Embassy", looks_up=True),
}


def module_of(name: str) -> Any:
    """Import the file of a stranger."""
    return importlib.import_module(f"benchmarks.strangers.{name}")


def make(name: str) -> TextEnv:
    """Make a stranger with its default arguments."""
    env: TextEnv = getattr(module_of(name), STRANGERS[name].class_name)()
    return env

"""Arms: the rows of a results table, and the trained parts that each of them stands on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from reflectrl.plugins import suggestion
from reflectrl.types import UserError


@dataclass(frozen=True)
class Arm:
    """One way to play.

    Attributes:
        about: one line for tables and lists.
        player: "policy" is a trained model; the others need none.
        reflection: whether a reflector speaks.
        negatives: whether its SFT data contains negative examples.
        sft: whether SFT comes before anything else.
        rl: whether online RL follows.
    """

    about: str
    player: Literal["random", "expert", "oracle", "baseline", "policy"] = "policy"
    reflection: bool = True
    negatives: bool = True
    sft: bool = True
    rl: bool = True

    @property
    def reflector_part(self) -> str | None:
        """The part that trains its reflector."""
        if self.player != "policy" or not self.reflection:
            return None
        return "reflector" if self.negatives else "reflector-positive"

    @property
    def policy_part(self) -> str | None:
        """The SFT part that its policy starts from; None when it starts from the base model."""
        if self.player != "policy" or not self.sft:
            return None
        if not self.reflection:
            return "plain"
        return "policy" if self.negatives else "policy-positive"

    @property
    def sft_parts(self) -> tuple[str, ...]:
        return tuple(part for part in (self.reflector_part, self.policy_part) if part)


ARMS: dict[str, Arm] = {
    "random": Arm("a legal action at random", player="random", reflection=False, rl=False),
    "expert": Arm("the environment's expert, who teaches", player="expert", reflection=False, rl=False),
    "oracle": Arm("knows what is hidden from players", player="oracle", reflection=False, rl=False),
    "baseline": Arm("the usual method without learning", player="baseline", reflection=False, rl=False),
    "sft": Arm("both players after SFT, no RL", rl=False),
    "sft-no-reflection": Arm("SFT policy without a reflector, no RL", reflection=False, rl=False),
    "sft-no-negatives": Arm("both players after SFT without negatives, no RL", negatives=False, rl=False),
    "rl-only": Arm("RL from the base model, no SFT, no reflector", reflection=False, sft=False),
    "no-reflection": Arm("SFT + RL without a reflector", reflection=False),
    "no-negatives": Arm("SFT + RL, SFT data without negatives", negatives=False),
    "reflect-rl": Arm("the full method: reflector, negatives, SFT + RL"),
}


def chosen(names: Iterable[str]) -> dict[str, Arm]:
    """The arms of those names; UserError names one that does not exist."""
    for name in names:
        if name not in ARMS:
            raise UserError(f"unknown arm {name!r} in 'arms'{suggestion(name, ARMS)}")
    return {name: ARMS[name] for name in names}

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
        offline: how it learns from the log of episodes: an algorithm, "rvs", "expert-iteration", or "reference" (what
            the others start from); "" where it does not.
    """

    about: str
    player: Literal["random", "expert", "oracle", "baseline", "policy"] = "policy"
    reflection: bool = True
    negatives: bool = True
    sft: bool = True
    rl: bool = True
    offline: str = ""

    @property
    def reflector_part(self) -> str | None:
        """The part that trains its reflector."""
        if self.player != "policy" or not self.reflection:
            return None
        return "reflector" if self.negatives else "reflector-positive"

    @property
    def policy_part(self) -> str | None:
        """The part that trains its policy, or from which RL starts; None when that is the base model."""
        if self.offline:
            return f"offline-{self.offline}"
        if self.player != "policy" or not self.sft:
            return None
        if not self.reflection:
            return "plain"
        return "policy" if self.negatives else "policy-positive"

    @property
    def sft_parts(self) -> tuple[str, ...]:
        return tuple(part for part in (self.reflector_part, None if self.offline else self.policy_part) if part)

    @property
    def offline_parts(self) -> tuple[str, ...]:
        """What is learned from the log for it, in order."""
        if self.offline in ("", "rvs"):
            return (self.policy_part,) if self.offline and self.policy_part else ()
        valueless = {"reference": (), "expert-iteration": ("reference",), "archer": ("reference",)}
        needed = valueless.get(self.offline, ("reference", "value"))
        return tuple(f"offline-{part}" for part in (*needed, self.offline))


def _offline(about: str, how: str, rl: bool = False) -> Arm:
    return Arm(about, reflection=False, negatives=False, sft=False, rl=rl, offline=how)


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
    "offline-reference": _offline("imitates the log: what the other offline arms start from", "reference"),
    "offline-nll": _offline("goes on imitating the log", "nll"),
    "offline-wbc": _offline("imitation weighted by reward-to-go", "wbc"),
    "offline-r_gold": _offline("the same, and by its own probability (GOLD)", "r_gold"),
    "offline-r_lol": _offline("reward-to-go times importance ratio", "r_lol"),
    "offline-a_lol": _offline("A-LoL: advantage times importance ratio", "a_lol"),
    "offline-a_lol_ref_free": _offline("A-LoL without importance ratio", "a_lol_ref_free"),
    "offline-a_lol_seq": _offline("A-LoL with a ratio per token", "a_lol_seq"),
    "offline-a_lol_kl": _offline("A-LoL with a KL penalty", "a_lol_kl"),
    "offline-archer": _offline("advantages of a critic that learns from step to step (ArCHer)", "archer"),
    "offline-dpo": _offline("preferences between logged actions of one state (DPO)", "dpo"),
    "offline-pro": _offline("rankings of logged actions of one state (PRO)", "pro"),
    "offline-rvs": _offline("imitation told the return, then asked for a high one (RvS)", "rvs"),
    "offline-expert-iteration": _offline("imitates its own successes, round after round", "expert-iteration"),
    "offline-online": _offline("A-LoL on the log, then online RL", "a_lol", rl=True),
}


def chosen(names: Iterable[str]) -> dict[str, Arm]:
    """The arms of those names; UserError names one that does not exist."""
    for name in names:
        if name not in ARMS:
            raise UserError(f"unknown arm {name!r} in 'arms'{suggestion(name, ARMS)}")
    return {name: ARMS[name] for name in names}

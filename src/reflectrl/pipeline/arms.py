"""Arms, the rows of a results table, and the trained models that they stand on: to add one, add a line to a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reflectrl.plugins import suggestion
from reflectrl.types import UserError

BASE = "base"
"""The model that everything starts from: one made from scratch, or that of `model.source`."""


@dataclass(frozen=True)
class SFT:
    """A model fine-tuned on teaching episodes.

    Attributes:
        player: what it becomes: "reflector", "policy", or "plain", a policy that reads no reflections.
        negatives: whether its data contain negative examples.
        reflector: from which reflector it starts where the recipe says `sft.policy_from = "reflector"`.
    """

    player: Literal["reflector", "policy", "plain"]
    negatives: bool = True
    reflector: str = ""


@dataclass(frozen=True)
class Offline:
    """A policy that learns from the log of episodes, without reading reflections.

    Attributes:
        algorithm: a `LogAlgorithm`, "rvs" (return-conditioned cloning) or "expert-iteration".
        start: the model that it starts from.
        value: whether it needs the value that `start` has in every state of the log.
    """

    algorithm: str
    start: str = "offline-reference"
    value: bool = True


MODELS: dict[str, SFT | Offline] = {
    "reflector": SFT("reflector"),
    "policy": SFT("policy", reflector="reflector"),
    "plain": SFT("plain"),
    "reflector-positive": SFT("reflector", negatives=False),
    "policy-positive": SFT("policy", negatives=False, reflector="reflector-positive"),
    "offline-reference": Offline("nll", start=BASE, value=False),
    "offline-nll": Offline("nll"),
    "offline-wbc": Offline("wbc"),
    "offline-r_gold": Offline("r_gold"),
    "offline-r_lol": Offline("r_lol"),
    "offline-a_lol": Offline("a_lol"),
    "offline-a_lol_ref_free": Offline("a_lol_ref_free"),
    "offline-a_lol_seq": Offline("a_lol_seq"),
    "offline-a_lol_kl": Offline("a_lol_kl"),
    "offline-archer": Offline("archer", value=False),
    "offline-dpo": Offline("dpo"),
    "offline-pro": Offline("pro"),
    "offline-rvs": Offline("rvs", start=BASE, value=False),
    "offline-expert-iteration": Offline("expert-iteration", value=False),
}
"""What is trained before online RL, by name: the name of its checkpoint in a run folder."""


@dataclass(frozen=True)
class Arm:
    """One way to play.

    Attributes:
        about: one line for tables and lists.
        policy: the model that plays, or from which RL starts: one of `MODELS`, or the base model.
        reflector: the model that writes reflections for it; "" for none.
        rl: settings of [rl] that are the arm's own, {} for the recipe's; None where no online RL follows.
        player: who plays where no model does.
        asks_return: whether the policy is told the return that is asked for, in place of a reflection.
    """

    about: str
    policy: str = ""
    reflector: str = ""
    rl: Mapping[str, Any] | None = None
    player: Literal["policy", "random", "expert", "oracle", "baseline"] = "policy"
    asks_return: bool = False


ARMS: dict[str, Arm] = {
    "random": Arm("a legal action at random", player="random"),
    "expert": Arm("the environment's expert, who teaches", player="expert"),
    "oracle": Arm("knows what is hidden from players", player="oracle"),
    "baseline": Arm("the usual method without learning", player="baseline"),
    "sft": Arm("both players after SFT, no RL", "policy", "reflector"),
    "sft-no-reflection": Arm("SFT policy without a reflector, no RL", "plain"),
    "sft-no-negatives": Arm("both players after SFT without negatives, no RL", "policy-positive", "reflector-positive"),
    "rl-only": Arm("RL from the base model, no SFT, no reflector", BASE, rl={}),
    "no-reflection": Arm("SFT + RL without a reflector", "plain", rl={}),
    "no-negatives": Arm("SFT + RL, SFT data without negatives", "policy-positive", "reflector-positive", rl={}),
    "reflect-rl": Arm("the full method: reflector, negatives, SFT + RL", "policy", "reflector", rl={}),
    "offline-reference": Arm("imitates the log: what the other offline arms start from", "offline-reference"),
    "offline-nll": Arm("goes on imitating the log", "offline-nll"),
    "offline-wbc": Arm("imitation weighted by reward-to-go", "offline-wbc"),
    "offline-r_gold": Arm("the same, and by its own probability (GOLD)", "offline-r_gold"),
    "offline-r_lol": Arm("reward-to-go times importance ratio", "offline-r_lol"),
    "offline-a_lol": Arm("A-LoL: advantage times importance ratio", "offline-a_lol"),
    "offline-a_lol_ref_free": Arm("A-LoL without importance ratio", "offline-a_lol_ref_free"),
    "offline-a_lol_seq": Arm("A-LoL with a ratio per token", "offline-a_lol_seq"),
    "offline-a_lol_kl": Arm("A-LoL with a KL penalty", "offline-a_lol_kl"),
    "offline-archer": Arm("advantages of a critic that learns from step to step (ArCHer)", "offline-archer"),
    "offline-dpo": Arm("preferences between logged actions of one state (DPO)", "offline-dpo"),
    "offline-pro": Arm("rankings of logged actions of one state (PRO)", "offline-pro"),
    "offline-rvs": Arm("imitation told the return, then asked for a high one (RvS)", "offline-rvs", asks_return=True),
    "offline-expert-iteration": Arm("imitates its own successes, round after round", "offline-expert-iteration"),
    "offline-online": Arm("A-LoL on the log, then online RL", "offline-a_lol", rl={}),
}


def chosen(names: Iterable[str]) -> dict[str, Arm]:
    """The arms of those names; UserError names one that does not exist."""
    for name in names:
        if name not in ARMS:
            raise UserError(f"unknown arm {name!r} in 'arms'{suggestion(name, ARMS)}")
    return {name: ARMS[name] for name in names}


def played_model(name: str) -> str:
    """The model that acts for an arm in the end; "" where none does."""
    arm = ARMS[name]
    return arm.policy if arm.rl is None else f"rl-{name}"

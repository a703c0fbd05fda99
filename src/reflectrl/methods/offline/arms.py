"""Arms of offline learning in a run, their models, and the artifacts from which those are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from reflectrl.methods.offline.config import Algorithm, offline_settings
from reflectrl.runs.arms import BASE, PLAYED, Arm
from reflectrl.runs.graph import Plan

SETTINGS = (*PLAYED, "sft", "offline", "rl.temperature", "rl.eval_sampling")
"""Recipe keys that offline learning depends on."""
BUILDERS = "reflectrl.methods.offline.builders"


@dataclass(frozen=True)
class Offline:
    """A policy that learns from the log of episodes, without reading reflections.

    Attributes:
        algorithm: a `LogAlgorithm`, "rvs" (return-conditioned cloning) or "expert-iteration".
        start: name of the initial model.
        value: True if it needs the value of the policy `start` in every state of the log.
    """

    algorithm: str
    start: str = "offline-reference"
    value: bool = True

    def artifacts(self, plan: Plan, name: str) -> list[str]:
        """Plan the log, the initial model, the reference's value if needed, and the policy; return the policy's key."""
        inputs = [log(plan), *plan.model(self.start)]
        if self.value:
            output = f"checkpoints/seed{plan.seed}/offline-value/reference_cache.json"
            inputs += [plan.add("offline", "offline-value", "rl", f"{BUILDERS}:value", output, inputs, *SETTINGS)]
        return [plan.add("offline", name, "rl", f"{BUILDERS}:policy", plan.checkpoint(name), inputs, *SETTINGS)]


def log(plan: Plan) -> str:
    """Plan the log: the teacher's trajectories, and episodes of the SFT policy if the recipe asks for some."""
    played = plan.model("plain") if offline_settings(plan.recipe).log_episodes else ()
    inputs, output = [plan.teaching("train"), *played], f"episodes/offline-seed{plan.seed}.jsonl"
    settings = (*PLAYED, "offline.log_episodes", "rl.temperature")
    remaining = f"{BUILDERS}:remaining_log"
    return plan.add("log", "episodes", "rl", f"{BUILDERS}:log", output, inputs, *settings, remaining=remaining)


MODELS = {f"offline-{name}": Offline(name) for name in get_args(Algorithm)}
MODELS |= {
    "offline-reference": Offline("nll", start=BASE, value=False),
    "offline-archer": Offline("archer", value=False),
    "offline-rvs": Offline("rvs", start=BASE, value=False),
    "offline-expert-iteration": Offline("expert-iteration", value=False),
}
ABOUT = {
    "reference": "imitates the log: what the other offline arms start from",
    "nll": "goes on imitating the log",
    "wbc": "imitation weighted by reward-to-go",
    "r_gold": "the same, and by its own probability (GOLD)",
    "r_lol": "reward-to-go times importance ratio",
    "a_lol": "A-LoL: advantage times importance ratio",
    "a_lol_ref_free": "A-LoL without importance ratio",
    "a_lol_seq": "A-LoL with a ratio per token",
    "a_lol_kl": "A-LoL with a KL penalty",
    "archer": "advantages of a critic that learns from step to step (ArCHer)",
    "dpo": "preferences between logged actions of one state (DPO)",
    "pro": "rankings of logged actions of one state (PRO)",
    "expert-iteration": "imitates its own successes, round after round",
}
ARMS = {f"offline-{name}": Arm(about, f"offline-{name}") for name, about in ABOUT.items()}
ARMS |= {
    "offline-rvs": Arm(
        "imitation told the return, then asked for a high one (RvS)",
        "offline-rvs",
        speaker="reflectrl.methods.offline.target_return:target_return_player",
        settings=("offline.target_return",),
    ),
    "offline-online": Arm("A-LoL on the log, then online RL", "offline-a_lol", rl={}),
}

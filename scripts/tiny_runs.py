"""Run small versions of five recipes, and print a digest of each file that has to stay the same.

    python scripts/tiny_runs.py OUT > after.txt
    diff before.txt after.txt

Episodes, completions, metrics, results and weights are compared. Times, and the commit in the results, are left out.
Written for changes that must not change any result: run it with the package before and after.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file

from reflectrl.cli import main

TINY = shlex.split(
    "--model.layers 1 --model.width 16 --model.heads 2 --model.mixed_precision off --play.reflection_tokens 8 "
    "--teach.tasks 5 --teach.validation_tasks 3 --sft.steps 4 --sft.policy_steps 3 --sft.batch_size 8 "
    "--sft.eval_every 2 --sft.eval_rows 8 --rl.updates 3 --rl.episodes 4 --rl.eval_every 1 --rl.eval_episodes 2 "
    "--eval.episodes 3 --seeds 0,1 --distill.episodes 1 --distill.steps 3 --distill.batch_size 4 "
    "--distill.eval_every 1 --distill.eval_episodes 2 --values.critic_steps 2 --values.critic_batch 8 "
    "--values.actor_steps 2 --values.actor_batch 4 --reflecting.states 3 --reflecting.samples 2 "
    "--reflecting.continuations 1 --reflecting.rounds 3 --reflecting.steps 2 --reflecting.batch_size 2 "
)
OFFLINE = shlex.split(
    "--offline.steps 3 --offline.reference_steps 3 --offline.value_epochs 2 --offline.eval_every 1 "
    "--offline.eval_episodes 2 --offline.log_episodes 1 --offline.batch_size 4 "
)
METHODS = (
    "random,expert,sft,sft-neither,rl-only,no-reflection,reflect-rl,distilled,distilled-sft,archer,linvit-no-reflection,"
    "reflector-rl,both-rl,reflector-rejection,dagger,dagger-2"
)
RUNS = {
    "taxi": ["taxi", "--arms", METHODS, *TINY],
    "taxi-replay": ["taxi", "--arms", "no-reflection,reflect-rl", "--rl.algorithm", "ppo", "--rl.baseline", "critic",
                    "--rl.replay_log", "2", "--rl.reverse", "0.5", "--teach.reflections", "outcomes",
                    "--teach.outcome_episodes", "1", "--teach.outcome_actions", "2", *TINY],
    "taxi-alone": ["taxi", "--arms", "random,rl-only", *TINY],
    "offline-taxi": ["offline-taxi", *TINY, *OFFLINE],
    "orders": ["orders", "--text.prompts", "12", "--text.eval_prompts", "2", *TINY, *OFFLINE, "--rl.group", "1"],
    "alfworld": ["alfworld", "--arms", "random,sft,reflect-rl", *TINY, "--env.horizon", "6"],
}  # fmt: skip
KEPT = ("episodes/*", "completions/*", "data/*", "metrics/*.jsonl", "metrics.jsonl", "results.json", "recipe.toml")


def digests(folder: Path) -> Iterator[str]:
    """Yield a line with name and digest of each file whose content must not change."""
    for path in sorted(path for pattern in KEPT for path in folder.glob(pattern) if path.is_file()):
        data = path.read_bytes()
        if path.name == "results.json":
            results = json.loads(data)
            data = json.dumps({key: value for key, value in results.items() if key != "commit"}).encode()
        yield f"{path.relative_to(folder)} {hashlib.sha256(data).hexdigest()[:16]}"
    for path in sorted(folder.glob("checkpoints/*/*/*.safetensors")):
        weights = hashlib.sha256()
        for name, tensor in sorted(load_file(path).items()):
            weights.update(name.encode() + tensor.numpy().tobytes())
        yield f"{path.relative_to(folder)} {weights.hexdigest()[:16]}"


def fingerprints(folder: Path) -> Iterator[str]:
    """Yield a line with key and fingerprint of each artifact."""
    for key, record in sorted(json.loads((folder / "state.json").read_text(encoding="utf-8"))["artifacts"].items()):
        yield f"{key}: {record['fingerprint']}"


if __name__ == "__main__":
    for run_name, words in RUNS.items():
        run_folder = Path(sys.argv[1]) / run_name
        if len(sys.argv) > 2 and run_name not in sys.argv[2].split(","):
            continue
        if main(["run", *words, "--folder", str(run_folder)]):
            sys.exit(f"{run_name} failed")
        print(f"\n{run_name}", *digests(run_folder), *fingerprints(run_folder), sep="\n")

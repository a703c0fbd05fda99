"""Artifacts: what one of them is made from, what is known of it, and what a new arm needs."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.config import Recipe, load_recipe
from reflectrl.core.episodes import EpisodeLog
from reflectrl.core.types import Choice, Episode, Observation, Step, Task, UserError
from reflectrl.runs.arms import ARMS, Arm, policy
from reflectrl.runs.artifact import Build
from reflectrl.runs.folder import Context, RunFolder
from reflectrl.runs.graph import planned
from reflectrl.runs.stages import TOKENIZER_ROWS
from tests.runs.conftest import LIKE


def _episode(word: str, steps: int) -> Episode:
    actions = tuple(f"take {word} {i}" for i in range(1, 4))
    shown = Observation(f"You see a {word} 1.\n", f"Holding: {word} 2\n", actions)
    step = Step(shown, (Choice("expert", actions[0], choice=0),), action=0, reward=0.0)
    return Episode(Task(word, "house"), (step,) * steps, success=True, truncated=False, seed=0)


def test_a_tokenizer_made_here_knows_words_of_the_whole_log_and_not_of_its_first_episodes(
    like: LIKE, tmp_path: Path
) -> None:
    run, words = RunFolder(tmp_path), ["dishsponge", "microwave"]
    run.teach(0, "train").parent.mkdir(parents=True)
    with EpisodeLog(run.teach(0, "train")) as log:
        log.append(_episode(words[0], TOKENIZER_ROWS + 1))
        log.append(_episode(words[1], TOKENIZER_ROWS // 2))
    recipe = like("model.vocab=330")
    artifact = planned(recipe)["base model (seed 0)"]
    Build(Context(recipe, run), artifact, lambda *_: None)()
    tokenizer = AutoTokenizer.from_pretrained(run.checkpoint(0, "base"))
    assert [len(tokenizer.tokenize(f" {word}")) for word in words] == [1, 1]


# ---- the graph -------------------------------------------------------------------------------------------------------


def known(recipe: Recipe, folder: Path) -> dict[str, str]:
    """Key of each artifact → what a dry run says of it."""
    lines = (line[7:].partition("; from")[0] for line in pipeline.graph_lines(recipe, folder))
    return {name: said for name, _, said in (line.rpartition(": ") for line in lines)}


def test_a_dry_run_says_what_is_done_and_what_is_missing(
    like: LIKE, finished: Path, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifacts = [key for key in known(like(), finished) if not key.startswith(("results", "report"))]
    assert {known(like(), tmp_path)[key] for key in artifacts} == {"missing"}
    assert {known(like(), finished)[key] for key in artifacts} == {"done"}
    assert main(["run", str(recipe_file), "--dry-run", "--folder", str(finished), "--arms", "sft,no-reflection"]) == 0
    printed = capsys.readouterr().out
    assert load_recipe(recipe_file).seeds == tuple(tomllib.loads(printed)["seeds"])  # the graph stands in comments
    assert "# sft    sft policy (seed 0): done; from base model, teach train, teach validation, [env]" in printed
    assert "# rl     rl no-reflection (seed 0): missing; from sft plain, [env]" in printed


def test_what_was_made_with_other_settings_is_outdated_and_all_that_stands_on_it(like: LIKE, finished: Path) -> None:
    said = known(like("rl.lr=0.5"), finished)
    outdated = {key for key, words in said.items() if words == "outdated"}
    assert outdated == {"rl reflect-rl (seed 0)", "eval reflect-rl (seed 0)"}
    assert said["eval sft (seed 0)"] == said["sft policy (seed 0)"] == "done"


def test_more_evaluation_is_begun_and_not_outdated(like: LIKE, finished: Path) -> None:
    assert known(like("eval.splits=train,validation,test"), finished)["eval sft (seed 0)"] == "begun"


def test_a_setting_may_change_where_nothing_there_depends_on_it(like: LIKE, copy: Path) -> None:
    """An arm that comes back later is still known to have been made with the earlier setting."""
    pipeline.run(like("arms=random,sft", "rl.lr=0.5"), copy, "eval")
    with pytest.raises(UserError, match="holds a run with 'rl reflect-rl .* other settings"):
        pipeline.run(like("rl.lr=0.5"), copy, "eval")


def test_an_artifact_that_was_only_begun_is_not_gone_on_with_under_other_settings(like: LIKE, copy: Path) -> None:
    log = copy / "episodes/teach-seed0-train.jsonl"
    log.write_bytes(log.read_bytes()[:-100])
    shutil.rmtree(copy / "checkpoints")
    for path in copy.glob("episodes/eval-*"):
        path.unlink()
    with pytest.raises(UserError, match=r"teach.negatives = 1, not 2"):
        pipeline.run(like("teach.negatives=2"), copy, "teach")


def test_a_new_arm_is_a_line_of_the_table(like: LIKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Arm("RL with PPO and a critic", policy, rl={"algorithm": "ppo", "baseline": "critic", "updates": 4})
    monkeypatch.setitem(ARMS, "ppo-critic", mine)
    pipeline.run(like("arms=ppo-critic", "eval.sampling=greedy", "eval.splits=test"), tmp_path / "run", "eval")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["arm"] == "ppo-critic"][-1] == 4
    assert any("value_loss" in line for line in lines if line["arm"] == "ppo-critic")
    assert {row["arm"] for row in json.loads((tmp_path / "run/results.json").read_text())["rows"]} == {"ppo-critic"}


def test_an_arm_has_a_policy_or_another_player() -> None:
    for name, arm in ARMS.items():
        assert (arm.player == "policy") == (arm.policy is not None), name

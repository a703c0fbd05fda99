"""A whole run: what it leaves in its folder, what a second call does, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.config import load_recipe
from reflectrl.core.digests import DIGESTS
from reflectrl.core.episodes import read_episodes
from reflectrl.core.terminal import console
from reflectrl.core.types import UserError
from reflectrl.runs.arms import ARMS, select_arms
from reflectrl.runs.folder import folder_lock
from reflectrl.runs.graph import planned
from reflectrl.runs.report.data import read_run, read_timings
from reflectrl.runs.results import show_results, training_seconds

Like = Callable[..., Any]
Said = Callable[[Path], dict[str, str]]


def everything(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, but for the lock, which names who held it last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refused(capsys: Any, *words: str) -> str:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("reflectrl: ") and err.count("\n") == 1, err
    return str(err)


class TestFolder:
    def test_every_file_of_the_design_is_there(self, finished: Path, like: Like) -> None:
        assert load_recipe(finished / "recipe.toml") == like()
        assert {path.name for path in (finished / "checkpoints" / "seed0").iterdir()} == {
            "base", "reflector", "policy", "rl-reflect-rl",
        }  # fmt: skip
        weights = [path for path in (finished / "checkpoints").rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]
        assert weights == [] and load_file(finished / "checkpoints/seed0/rl-reflect-rl/model.safetensors")
        state = json.loads((finished / "state.json").read_text())
        assert state["complete"] == ["teach", "sft", "rl", "eval", "report"]
        names = {"teach train", "teach validation", "base model", "sft reflector", "sft policy", "rl reflect-rl"}
        names |= {"eval random", "eval sft", "eval reflect-rl"}
        assert set(state) == {"schema", "complete", "artifacts", "tasks", "auto_precision", "threads", "digest"}
        assert set(state["artifacts"]) == {f"{x} (seed 0)" for x in names}
        assert (finished / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")

    def test_the_table_says_what_each_arm_took_to_train(self, finished: Path, like: Like, capsys: Any) -> None:
        graph = planned(like())
        lines = [line for line in read_timings(finished) if "artifact" in line]
        spent = {(line["stage"], line["artifact"]): line["cpu_seconds"] for line in lines}
        seconds = training_seconds(graph, finished)
        assert seconds["sft"] == pytest.approx(spent["sft", "reflector"] + spent["sft", "policy"])
        assert seconds["reflect-rl"] == pytest.approx(seconds["sft"] + spent["rl", "reflect-rl"])
        assert seconds.keys() == {"sft", "reflect-rl"}  # random play trains nothing
        show_results(console(160), finished, select_arms(like().arms, like()), {**seconds, "sft": 123.4})
        said = capsys.readouterr().out
        assert "training, CPU s" in said and re.search("sft .* 123 │", said) and re.search("random .* - │", said)

    def test_episodes_of_every_arm_split_and_sampling(self, finished: Path) -> None:
        logs = {path.name for path in (finished / "episodes").iterdir()}
        assert logs == {"teach-seed0-train.jsonl", "teach-seed0-validation.jsonl"} | {
            f"eval-{arm}-seed0-{split}-full-{sampling}.jsonl"
            for arm in ("random", "sft", "reflect-rl")
            for split in ("train", "test")
            for sampling in ("greedy", "sampled")
        }
        assert len(list(read_episodes(finished / "episodes/teach-seed0-train.jsonl"))) == 5 * 3
        for episode in read_episodes(finished / "episodes/eval-sft-seed0-test-full-sampled.jsonl"):
            assert episode.task.split == "test" and episode.steps[0].reflection is not None
            assert episode.provenance["arm"] == "sft"

    def test_metrics_have_a_line_per_update(self, finished: Path) -> None:
        lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
        steps = {kind: [line["step"] for line in lines if line["kind"] == kind] for kind in ("sft_reflection", "rl")}
        assert steps == {"sft_reflection": [2, 4, 5], "rl": [0, 1, 2, 3]}
        assert {"success", "return", "loss", "entropy", "stage"} <= lines[-2].keys()

    def test_results_are_those_of_the_episodes(self, finished: Path) -> None:
        results = json.loads((finished / "results.json").read_text())
        assert len(results["rows"]) == 3 * 2 * 2 * 2  # arms, splits, samplings, stages (key is read off)
        for row in results["rows"]:
            name = f"eval-{row['arm']}-seed0-{row['split']}-full-{row['sampling']}.jsonl"
            episodes = list(read_episodes(finished / "episodes" / name))
            won = [e.success if row["stage"] == "full" else "key" in e.events for e in episodes]
            assert (row["episodes"], row["success"]) == (len(won), sum(won) / len(won))

    def test_times_are_kept_apart_and_put_together_for_the_report(self, finished: Path) -> None:
        assert "seconds" not in (finished / "results.json").read_text()
        results = read_run(finished).results
        assert results is not None and results.created.startswith("20")
        for scores in (results.rows, results.summary):
            assert all((score.seconds is not None) == (score.stage == "full") for score in scores)
        spent = [json.loads(line) for line in (finished / "timings.jsonl").read_text().splitlines()]
        assert {line.get("stage") for line in spent} >= {"teach", "base", "sft", "rl", "eval"}

    def test_an_arm_can_be_loaded_to_play(self, finished: Path) -> None:
        player, reflector = pipeline.load_players(finished, "reflect-rl", 0)
        assert reflector is not None and type(player).__name__ == "Policy"
        with pytest.raises(UserError, match="'no-negatives'|not trained"):
            pipeline.load_players(finished, "no-negatives", 0)


class TestSecondCall:
    def test_it_does_nothing(self, copy: Path, like: Like, capsys: Any) -> None:
        before = everything(copy)
        pipeline.run(like(), copy)
        assert everything(copy) == before
        assert "seed 0" not in capsys.readouterr().out  # no part was made

    def test_another_folder_holds_the_same(self, finished: Path, tmp_path: Path, like: Like, said: Said) -> None:
        pipeline.run(like(), tmp_path / "other", "eval")
        assert said(tmp_path / "other") == said(finished)

    def test_stage_by_stage_is_the_same(self, finished: Path, tmp_path: Path, like: Like, said: Said) -> None:
        for until in ("teach", "rl", "eval"):
            pipeline.run(like(), tmp_path / "run", until)
            assert json.loads((tmp_path / "run/state.json").read_text())["complete"][-1] == until
        assert said(tmp_path / "run") == said(finished)

    def test_a_new_seed_and_a_new_arm_make_only_what_is_missing(self, copy: Path, like: Like, said: Said) -> None:
        before = said(copy)
        pipeline.run(like("seeds=0,1", "arms=random,sft,rl-only", "eval.sampling=greedy"), copy, "eval")
        after = said(copy)
        kept = [name for name in before if name.startswith("episodes/")]
        assert all(after[name] == before[name] for name in kept)
        assert "episodes/eval-rl-only-seed1-test-full-greedy.jsonl" in after
        assert not list(copy.glob("checkpoints/seed1/rl-reflect-rl"))
        results = json.loads((copy / "results.json").read_text())
        assert {(line["arm"], line["seeds"]) for line in results["summary"]} == {
            (arm, 2) for arm in ("random", "sft", "rl-only")
        }
        state = json.loads((copy / "state.json").read_text())["complete"]
        assert state == ["teach", "sft", "rl", "eval"]  # the report speaks of what was there before

    def test_more_episodes_keep_those_that_were_played(self, copy: Path, like: Like) -> None:
        log = copy / "episodes/eval-random-seed0-train-full-greedy.jsonl"
        lines = log.read_text().splitlines()
        log.unlink()
        pipeline.run(like("eval.episodes=3", "arms=random"), copy, "eval")
        assert len(log.read_text().splitlines()) == 3
        pipeline.run(like("arms=random"), copy, "eval")
        assert sorted(log.read_text().splitlines()) == sorted(lines)

    def test_stages_that_are_played_themselves_have_one_row(self, copy: Path, like: Like) -> None:
        pipeline.run(like("arms=random", "eval.stages=key,full", "eval.sampling=greedy"), copy, "eval")
        rows = json.loads((copy / "results.json").read_text())["rows"]
        assert [(row["split"], row["stage"]) for row in rows] == [
            ("train", "key"), ("train", "full"), ("test", "key"), ("test", "full"),
        ]  # fmt: skip


class TestContinuing:
    @pytest.mark.parametrize("lines", [0, 3])
    def test_an_evaluation_goes_on_to_the_same_bytes(
        self, finished: Path, copy: Path, like: Like, said: Said, lines: int
    ) -> None:
        for log in copy.glob("episodes/eval-*"):
            whole = log.read_text(encoding="utf-8").splitlines(keepends=True)
            log.write_text("".join(whole[:lines]) + whole[lines][:70], encoding="utf-8")  # and half a line
        pipeline.run(like(), copy, "eval")
        assert said(copy) == said(finished)

    def test_teaching_goes_on_after_half_a_line(self, finished: Path, copy: Path, like: Like, said: Said) -> None:
        log = copy / "episodes/teach-seed0-train.jsonl"
        log.write_bytes(log.read_bytes()[:-100])
        pipeline.run(like(), copy, "eval")
        assert said(copy) == said(finished)

    def test_a_corrupt_line_is_named(self, copy: Path, like: Like, recipe_file: Path, capsys: Any) -> None:
        log = copy / "episodes/eval-sft-seed0-test-full-greedy.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        log.write_text("".join([lines[0], lines[1][:50] + "\n", *lines[2:]]), encoding="utf-8")
        assert f"{log}:2: corrupt episode" in refused(capsys, "run", str(recipe_file), "--folder", str(copy))

    def test_a_checkpoint_killed_while_it_was_replaced_is_found(
        self, finished: Path, copy: Path, like: Like, said: Said
    ) -> None:
        part = copy / "checkpoints/seed0/policy"
        part.rename(part.with_name("policy.old"))
        (part.parent / "reflector.writing").mkdir()
        pipeline.run(like(), copy, "eval")
        assert (part / "model.safetensors").is_file() and said(copy) == said(finished)


class TestRefusals:
    @pytest.mark.usefixtures("typed")
    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("sft.lr=0.5", "sft.lr = 0.002, not 0.5"),
            ("env.train=7", "env.train = 6, not 7"),
            ("env.rules=true", "env.rules = nothing, not True"),
            ("teach.noise=0.1", "teach.noise = (0.0, 0.5), not (0.1,)"),
            ("model.width=32", "model.width = 16, not 32"),
        ],
    )
    def test_another_recipe_is_refused_by_key(self, copy: Path, like: Like, override: str, words: str) -> None:
        before = everything(copy)
        with pytest.raises(UserError, match="holds a run with") as caught:
            pipeline.run(like(override), copy)
        assert words in str(caught.value) and f"--fork {copy} takes over" in str(caught.value)
        assert everything(copy) == before

    def test_a_second_process_is_refused(self, copy: Path, recipe_file: Path, capsys: Any) -> None:
        with folder_lock(copy):
            line = refused(capsys, "run", str(recipe_file), "--folder", str(copy))
        assert "another process" in line and "is at work in" in line and str(copy) in line
        assert main(["teach", str(recipe_file), "--folder", str(copy)]) == 0

    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("arms=random,reflect-lr", ["'reflect-lr'", "'reflect-rl'"]),
            ("eval.stages=kye", ["eval.stages", "'kye'", "'key'"]),
            ("eval.splits=tets", ["'tets'", "'test'"]),
            ("rl.updates=1", ["rl.updates is 1", "at least 2"]),
        ],
    )
    def test_what_the_environment_or_the_arms_do_not_have(
        self, tmp_path: Path, like: Like, override: str, words: list[str]
    ) -> None:
        with pytest.raises(UserError) as caught:
            pipeline.run(like(override), tmp_path / "run")
        assert all(word in str(caught.value) for word in words), caught.value

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path, recipe_file: Path, capsys: Any) -> None:
        (tmp_path / "episodes").write_text("in the way", encoding="utf-8")
        line = refused(capsys, "run", str(recipe_file), "--folder", str(tmp_path))
        assert f"run folder {tmp_path}" in line and "episodes" in line

    def test_a_checkpoint_of_another_tokenizer(self, copy: Path, recipe_file: Path, capsys: Any) -> None:
        card = copy / "checkpoints/seed0/reflector/reflectrl.json"
        card.write_text(json.dumps(json.loads(card.read_text()) | {"tokenizer": "0" * 16}), encoding="utf-8")
        (card.parent / DIGESTS).unlink()
        shutil.rmtree(copy / "checkpoints/seed0/rl-reflect-rl")
        line = refused(capsys, "run", str(recipe_file), "--folder", str(copy))
        assert "another tokenizer" in line and "reflector" in line

    def test_a_model_that_is_not_there(self, tmp_path: Path, like: Like) -> None:
        with pytest.raises(UserError, match="absent-model"):
            pipeline.run(like("model.source=./absent-model"), tmp_path / "run")


PLUGIN = """
from pathlib import Path
from corridor import CorridorEnv


class Fragile(CorridorEnv):
    def apply(self, action):
        if Path("broken").exists():
            raise RuntimeError("out of\\nfuel")
        return super().apply(action)


class Leaky(CorridorEnv):
    def tasks(self, split, stage=None):
        return super().tasks("train" if split == "test" else split, stage)
"""


class TestPlugins:
    @pytest.fixture(autouse=True)
    def _beside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my_plugins.py").write_text(PLUGIN, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)

    def test_one_that_raises_loses_nothing_that_was_finished(self, recipe_file: Path, capsys: Any) -> None:
        words = ["eval", str(recipe_file), "--folder", "run", "--env.name", "my_plugins:Fragile", "--arms=sft"]
        assert main(["sft", *words[1:]]) == 0
        before = everything(Path("run"))
        Path("broken").touch()
        line = refused(capsys, *words)
        assert "Fragile raised on task" in line and "RuntimeError: out of fuel" in line
        after = everything(Path("run"))
        assert all(after[name] == data for name, data in before.items() if name != "state.json")
        Path("broken").unlink()
        assert main(words) == 0
        assert Path("run/results.json").is_file()

    def test_one_whose_splits_overlap_is_refused_before_anything_is_made(
        self, recipe_file: Path, capsys: Any, tmp_path: Path
    ) -> None:
        words = ["run", str(recipe_file), "--folder", "run", "--env.name", "my_plugins:Leaky", "--no-check"]
        assert "occurs in the training" in refused(capsys, *words)
        assert not Path("run").exists()


class TestModels:
    @pytest.mark.parametrize("rank", [0, 4])
    def test_a_model_in_a_folder_is_trained_whole_or_by_adapters(
        self, tmp_path: Path, like: Like, small_model: Path, rank: int, monkeypatch: pytest.MonkeyPatch, said: Said
    ) -> None:
        monkeypatch.chdir(tmp_path)
        overrides = [f"model.source={small_model.name}", f"model.lora_rank={rank}", "arms=sft,reflect-rl,rl-only"]
        recipe = like(*overrides, "model.lora_dropout=0.1", "eval.sampling=greedy")
        pipeline.run(recipe, tmp_path / "run", "eval")
        seed = tmp_path / "run/checkpoints/seed0"
        assert {path.name for path in seed.iterdir()} == {"reflector", "policy", "rl-reflect-rl", "rl-rl-only"}
        name = "adapter_model.safetensors" if rank else "model.safetensors"
        trained = {path.name: load_file(path / name) for path in seed.iterdir()}
        assert any((tensor != trained["policy"][key]).any() for key, tensor in trained["reflector"].items())
        pipeline.run(recipe, tmp_path / "again", "eval")
        assert said(tmp_path / "again") == said(tmp_path / "run")

    def test_all_arms_on_another_environment(self, tmp_path: Path, like: Like) -> None:
        arms = list(ARMS)
        recipe = like(f"arms={','.join(arms)}", "eval.sampling=greedy", "rl.algorithm=ppo", "rl.baseline=critic")
        recipe = load_recipe(self.elsewhere(tmp_path, recipe))
        pipeline.run(recipe, tmp_path / "run", "eval")
        results = json.loads((tmp_path / "run/results.json").read_text())
        whole = [line for line in results["summary"] if line["stage"] == "full"]
        assert [line["arm"] for line in whole if line["split"] == "test"] == arms
        success = {line["arm"]: line["success"] for line in whole}
        assert success["expert"] == 1.0 and all(0 <= rate <= 1 for rate in success.values())

    def elsewhere(self, tmp_path: Path, recipe: Any) -> Path:
        from dataclasses import replace

        from reflectrl.core.config import to_toml

        env = {"name": "corridor", "length": 4, "impossible": "hidden", "history": True, "train": 6, "test": 3}
        path = tmp_path / "elsewhere.toml"
        path.write_text(to_toml(replace(recipe, env=env)), encoding="utf-8")
        return path


class TestPolicyFromReflector:
    def test_it_begins_where_the_reflector_ended(self, tmp_path: Path, like: Like) -> None:
        """With no learning to speak of, the policy's weights are the reflector's, also with several processes."""
        recipe = like("sft.policy_from=reflector", "sft.policy_steps=1", "sft.lr=1e-9", "processes=2")
        pipeline.run(recipe, tmp_path / "run", until="sft")
        weights = [
            load_file(tmp_path / f"run/checkpoints/seed0/{part}/model.safetensors") for part in ("reflector", "policy")
        ]
        for name, tensor in weights[0].items():
            assert torch.allclose(tensor, weights[1][name], atol=1e-6), name

    def test_adapters_cannot(self, tmp_path: Path, like: Like) -> None:
        with pytest.raises(UserError, match=r"with model\.lora_rank above 0 it must be 'base'"):
            pipeline.run(like("sft.policy_from=reflector", "model.lora_rank=4"), tmp_path / "run", until="sft")

"""The four families end to end: raw files, samples, tiny local models through the real loading code, table and page."""

import json
import statistics
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reflectrl.cli import main
from reflectrl.core.config import read_recipe
from reflectrl.runs.metrics import MetricsFile
from reflectrl.wings.text.learn.conditions import KEY
from reflectrl.wings.text.samples import read_samples
from tests.runs.alone import one_of_each_kind, require_made_alone

FIXTURES = Path(__file__).parents[1] / "samples" / "fixtures"
TINY = {
    "model.quantisation": "none",
    "model.dtype": "float32",
    "model.lora_rank": "0",
    "model.layers": "1",
    "model.width": "16",
    "model.heads": "2",
    "model.context": "256",
    "model.device": "cpu",
    "sft.optimizer": "adamw",
    "sft.batch_size": "4",
    "sft.accumulate": "1",
    "sft.eval_every": "2",
    "offline.optimizer": "adamw",
    "offline.steps": "2",
    "offline.reference_steps": "2",
    "offline.eval_every": "2",
    "offline.batch_size": "4",
    "offline.accumulate": "2",
    "offline.value_epochs": "1",
    "offline.prompt_tokens": "64",
    "offline.completion_tokens": "8",
    "offline.held_out": "0.5",
    "rl.updates": "2",
    "rl.episodes": "4",
    "rl.minibatch": "2",
    "rl.eval_every": "2",
}


def command(*words: str, **settings: str) -> int:
    return main([*words, *(word for key, value in settings.items() for word in (f"--{key}", value))])


def prepare(family: str, source: str, store: Path, *words: str) -> None:
    """Samples of the fixtures; the training prompts are held-out prompts as well, of which there would be too few."""
    assert main(["data", family, "--from", str(FIXTURES / source), "--store", str(store), *words]) == 0
    for train in store.rglob("train.jsonl"):
        for split in ("validation.jsonl", "test.jsonl"):
            with train.with_name(split).open("a") as file:
                file.write(train.read_text())


def finish(recipe: str, folder: Path, **settings: str) -> dict:
    assert command("run", recipe, "--folder", str(folder), **{**TINY, **settings}) == 0
    return json.loads((folder / "results.json").read_text())


def arms_of(results: dict) -> set[str]:
    return {row["arm"] for row in results["rows"]}


@pytest.fixture
def models(classifier):
    """Folders of tiny classifiers by component."""
    pair, ranker = classifier("roberta", 2, positions=512), classifier("gpt2", 1, pad=False, positions=512)
    return {
        "fluency": pair,
        "safety": pair,
        "faithfulness": pair,
        "comet_critic": pair,
        "engagement": ranker,
        "upvote": ranker,
        "reward_model": classifier("gpt_neox_reward_model", 1, positions=512),
    }


def rewards(models: dict[str, str], *names: str, section: str = "rewards") -> dict[str, str]:
    found = {f"{section}.{name}.model": models[name] for name in names}
    return found | {f"{section}.{name}.device": "cpu" for name in names}


def test_hha_and_the_score_of_an_adapter(models, tmp_path, tiny_folder, capsys):
    prepare("hha", "hha_rows", tmp_path / "data")
    arms = "data,reference,nll,a_lol,a_lol_kl,dpo,pro,ppo"
    settings = rewards(models, "reward_model") | rewards(models, "reward_model", section="test_rewards")
    lora = {"model.source": str(tiny_folder("llama")), "model.lora_rank": "2", "offline.sampling": "all_priority"}
    results = finish("hha", tmp_path / "run", arms=arms, **settings, **lora, **{"text.data": str(tmp_path / "data")})
    assert arms_of(results) == set(arms.split(","))
    best = next(row for row in results["rows"] if row["arm"] == "a_lol" and row["checkpoint"] == "best")
    assert 0 <= best["reward"] == best["metrics"]["reward_model"] <= 1
    assert {"distinct-1", "distinct-3", "length", "meteor"} <= set(best["metrics"])
    assert results["percentiles"][0]["advantage"]["p0"] <= results["percentiles"][0]["advantage"]["p100"]
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    # Of three prompts, there are good and rejected answers; each has its own percentiles and extremes, as published.
    [spread] = results["percentiles"]
    assert set(spread) == {"seed", "reward", "value", "advantage", "rejected reward", "rejected advantage"}
    assert "Rejected advantage (seed 0)" in (tmp_path / "run" / "report.html").read_text()
    extreme = {}
    for kind in ("advantage", "rejected-advantage"):
        lines = (tmp_path / "run" / "extremes" / f"top-{kind}-seed0.jsonl").read_text().splitlines()
        extreme[kind] = [json.loads(line) for line in lines]
        assert len(lines) == 3 and extreme[kind][0]["advantage"] == spread[kind.replace("-", " ")]["p100"]
    [other] = extreme["advantage"][0]["others"]
    assert other["completion"] in [line["completion"] for line in extreme["rejected-advantage"]]

    adapter = tmp_path / "run" / "checkpoints" / "seed0" / "a_lol"
    assert (adapter / "adapter_model.safetensors").is_file()
    capsys.readouterr()
    assert main(["score", str(tmp_path / "run"), "--model", str(adapter)]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    greedy = {"arm": "a_lol", "checkpoint": "best", "split": "test", "sampling": "greedy"}
    [known] = [row for row in results["rows"] if greedy.items() <= row.items()]
    assert (row["reward"], row["completions"]) == (known["reward"], known["completions"])


def test_comet(models, tmp_path, tiny_folder):
    prepare("comet", "comet10x", tmp_path / "data", "--style", "distill")
    base = {"model.source": str(tiny_folder("gpt2")), "text.data": str(tmp_path / "data")}
    settings = rewards(models, "comet_critic")
    results = finish("comet", tmp_path / "run", arms="reference,wbc,a_lol_ref_free", **settings, **base)
    assert arms_of(results) == {"reference", "wbc", "a_lol_ref_free"}


def test_reddit_and_its_second_run(models, tmp_path, capsys):
    rows = "".join(f'"Comment {i}: what now?","It is {i}."\n' for i in range(6))
    (tmp_path / "comments_positive.csv").write_text(f"parent_text,text\n{rows}")
    prepare("reddit", str(tmp_path / "comments_positive.csv"), tmp_path / "data")
    parts = ("fluency", "safety", "engagement", "upvote", "diversity")
    settings = rewards(models, *parts[:4]) | {"model.source": "scratch", "text.data": str(tmp_path / "data")}
    results = finish("reddit", tmp_path / "run", arms="data,reference,r_gold,a_lol_seq", **settings)
    for row in results["rows"]:
        assert row["reward"] == pytest.approx(sum(row["metrics"][name] for name in parts), abs=1e-6)
    capsys.readouterr()
    again = finish("reddit", tmp_path / "run", arms="data,reference,r_gold,a_lol_seq", **settings)
    assert again == results
    assert "/2 validation" not in capsys.readouterr().out  # nothing was learned again


def test_knowledge_dialogue(models, tmp_path):
    prepare("knowledge", "knowledge", tmp_path / "data")
    names = ("faithfulness", "fluency", "engagement")
    settings = rewards(models, *names) | {"model.source": "scratch", "text.data": str(tmp_path / "data")}
    results = finish("knowledge-dialogue", tmp_path / "run", arms="reference,r_lol,a_lol", **settings)
    row = results["rows"][0]
    assert {"faithfulness", "fluency", "engagement", "diversity", "coverage", "density"} <= set(row["metrics"])


def test_the_small_task_goes_on_where_it_was_stopped(tmp_path):
    settings = {"text.prompts": "12", "text.validation_prompts": "6", "eval.episodes": "5", "seeds": "0,1"}
    assert command("sft", "orders", "--folder", str(tmp_path / "run"), arms="data,nll,dpo", **{**TINY, **settings}) == 0
    assert not (tmp_path / "run" / "results.json").exists()
    results = finish("orders", tmp_path / "run", arms="data,nll,dpo", **settings)
    line = next(line for line in results["summary"] if line["arm"] == "dpo")
    assert (line["seeds"], line["interval"]) == (2, "t over seeds")
    whole = finish("orders", tmp_path / "other", arms="data,nll,dpo", **settings)
    assert [whole[key] for key in ("rows", "summary")] == [results[key] for key in ("rows", "summary")]


def test_an_arm_that_can_learn_nothing_is_left_out_and_the_others_run(tmp_path, caplog, capsys):
    """All rewards are below the value that a sigmoid can give, so no advantage is positive."""
    row = {"completion": " no.", "reward": 0.0, "meta": {"ordered": ["tea"]}}
    rows = [{**row, "prompt": f"Question {i}?", "group": f"{i}"} for i in range(12)]
    for split in ("train", "validation", "test"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"text.task": "own", "text.data": str(tmp_path / "data"), "seeds": "0", "eval.batch": "8"}
    settings |= {"offline.max_value": "1", "offline.value_from": "log"}
    arms = "reference,nll,a_lol,dpo"
    results = finish("orders", tmp_path / "run", arms=arms, **settings)
    assert arms_of(results) == {"reference", "nll"}
    assert [(one["arm"], one["seed"]) for one in results["left_out"]] == [("a_lol", 0), ("dpo", 0)]
    assert "the arm a_lol (seed 0) is left out" in caplog.text
    assert "left out: dpo (seed 0)" in capsys.readouterr().out
    assert "Left out: a_lol" in (tmp_path / "run" / "report.html").read_text()
    assert finish("orders", tmp_path / "run", arms=arms, **settings) == results

    # The run's most extreme samples are written out, and any saved model can be evaluated on its prompts.
    extreme = {path.name: path.read_text().splitlines() for path in (tmp_path / "run" / "extremes").iterdir()}
    assert set(extreme) == {f"{end}-{of}-seed0.jsonl" for end in ("top", "bottom") for of in
                            ("reward", "value", "advantage")}  # fmt: skip
    best = [json.loads(line)["advantage"] for line in extreme["top-advantage-seed0.jsonl"]]
    assert len(best) == 12 and best == sorted(best, reverse=True)
    capsys.readouterr()
    model = tmp_path / "run" / "checkpoints" / "seed0" / "nll"
    assert main(["score", str(tmp_path / "run"), "--model", str(model), "--prompts", "3"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert row["completions"] == 3 and row["arm"].startswith("nll-") and "order_relevance" in row["metrics"]
    assert main(["score", str(tmp_path / "data"), "--model", str(model)]) == 2
    assert main(["score", str(tmp_path / "run"), "--model", str(model), "--split", "nowhere"]) == 2


SMALL = {"text.prompts": "12", "text.validation_prompts": "6", "eval.episodes": "5", "seeds": "0"}
SMALL |= {"model.mixed_precision": "off", "rl.updates": "1"}


@pytest.fixture(scope="module")
def ordered(tmp_path_factory) -> Path:
    """A finished run of the task "orders" with an offline and an online arm."""
    folder = tmp_path_factory.mktemp("orders") / "run"
    finish("orders", folder, arms="data,a_lol,ppo", **SMALL)
    return folder


def test_each_artifact_of_a_text_task_is_made_from_its_inputs_alone(ordered, tmp_path):
    recipe = read_recipe(ordered / "recipe.toml")
    artifacts = one_of_each_kind(recipe)
    assert len(artifacts) >= 7  # samples, base model, reference, its value, offline, online, completions
    require_made_alone(recipe, ordered, artifacts, tmp_path / "alone")


def test_noise_falls_on_the_rewards_of_training_samples_alone(ordered, tmp_path):
    finish("orders", tmp_path / "run", arms="data", **SMALL, **{"text.noise": "0.2"})
    rows = {}
    for folder in (ordered, tmp_path / "run"):
        for split in ("train", "validation", "test"):
            rows[folder, split] = list(read_samples(folder / "data" / f"{split}.jsonl"))
    for split in ("validation", "test"):
        assert rows[ordered, split] == rows[tmp_path / "run", split]
    true, noisy = rows[ordered, "train"], rows[tmp_path / "run", "train"]
    assert [sample.completion for sample in true] == [sample.completion for sample in noisy]
    inner = [b.reward - a.reward for a, b in zip(true, noisy, strict=True) if 0 < b.reward < 1]
    assert len(inner) > 20 and 0.1 < statistics.stdev(inner) < 0.3
    assert all(0 <= sample.reward <= 1 for sample in noisy)


def test_several_completions_per_prompt_give_curves_and_continue_a_finished_run(tmp_path, capsys):
    settings = {**SMALL, "seeds": "0,1", "eval.sampling": "greedy,sampled"}
    more = {**settings, "eval.repeats": "3", "eval.pass_reward": "0.25"}
    whole = finish("orders", tmp_path / "whole", arms="data,reference", **more)
    rows = {(row["arm"], row["sampling"], row["seed"]): row for row in whole["rows"]}
    sampled = rows["reference", "sampled", 0]
    assert sampled["completions"] == 15
    rates = [name for name in sampled["metrics"] if "@" in name]
    assert rates == ["pass@1", "pass@2", "pass@3", "maj@1", "maj@2", "maj@3"]
    written = (tmp_path / "whole/completions/reference-seed0-only-test-sampled.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"].rpartition("#")[2] for line in written] == ["0", "1", "2"] * 5
    for single in (rows["reference", "greedy", 0], rows["data", "", 0]):
        assert single["completions"] == 5
        assert [name for name in single["metrics"] if "@" in name] == ["pass@1", "maj@1"]
    assert rows["data", "", 0]["metrics"]["pass@1"] > 0
    line = next(line for line in whole["summary"] if (line["arm"], line["sampling"]) == ("reference", "sampled"))
    passed = [rows["reference", "sampled", seed]["metrics"]["pass@3"] for seed in (0, 1)]
    assert line["metrics"]["pass@3"] == pytest.approx(sum(passed) / 2)
    page = (tmp_path / "whole/report.html").read_text()
    assert "<figcaption>pass@k</figcaption>" in page and "<figcaption>maj@k</figcaption>" in page
    assert "sampled: maj@k" in capsys.readouterr().out

    once = finish("orders", tmp_path / "once", arms="data,reference", **settings)
    assert not any("@" in name for row in once["rows"] for name in row["metrics"])
    assert "maj@k" not in (tmp_path / "once/report.html").read_text()
    again = finish("orders", tmp_path / "once", arms="data,reference", **more)
    assert again["rows"] == whole["rows"]
    # Another threshold needs no new completions.
    stricter = finish("orders", tmp_path / "once", arms="data,reference", **{**more, "eval.pass_reward": "0.99"})
    for before, after in zip(again["rows"], stricter["rows"], strict=True):
        assert after["reward"] == before["reward"] and after["metrics"]["pass@1"] <= before["metrics"]["pass@1"]


def test_without_sft_the_arms_start_from_the_base_model(tmp_path):
    settings = {**SMALL, "text.reference": "base", "rl.lr": "1e-9"}
    finish("orders", tmp_path / "run", arms="reference,ppo", **settings)
    checkpoints = tmp_path / "run/checkpoints/seed0"
    base, reference, ppo = (
        load_file(checkpoints / name / "model.safetensors") for name in ("base", "reference", "ppo-last")
    )
    for name, tensor in base.items():
        assert torch.equal(tensor, reference[name])
        assert torch.allclose(tensor, ppo[name], atol=1e-6)  # one update of a vanishing rate


def test_a_fork_takes_over_the_samples_of_every_split(ordered, tmp_path):
    rows = finish("orders", tmp_path / "fork", fork=str(ordered), arms="data", **SMALL)["rows"]
    before = json.loads((ordered / "results.json").read_text())["rows"]
    assert rows == [row for row in before if row["arm"] == "data"]
    for split in ("train", "validation", "test"):
        kept = Path("data") / f"{split}.jsonl"
        assert (tmp_path / "fork" / kept).read_bytes() == (ordered / kept).read_bytes()


def test_ppo_is_an_arm_like_the_others_and_goes_on_after_a_kill(tmp_path, monkeypatch, capsys):
    """It needs no reference cache; its curves, its best and its last checkpoint are where the others' are."""
    own = {"text.prompts": "12", "text.validation_prompts": "6", "eval.episodes": "5", "seeds": "0", "eval.batch": "8"}
    settings, arms = {**own, "rl.updates": "3"}, "reference,ppo"
    whole = finish("orders", tmp_path / "whole", arms=arms, **settings)
    assert [row["checkpoint"] for row in whole["rows"] if row["arm"] == "ppo"] == ["best", "last"] * 2
    assert whole["percentiles"] == [] and not list((tmp_path / "whole" / "checkpoints").rglob("offline-value*"))
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics" / "seed0-ppo.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [line["step"] for line in lines if "eval_reward" in line] == [0, 2, 3]
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "Reinforcement learning of the policy" in page and "Share of clipped importance ratios" in page
    assert "ppo" in capsys.readouterr().out

    def until(file, values, write=MetricsFile.write):
        if file.shared["arm"] == "ppo" and values["step"] == 1:
            raise KeyboardInterrupt
        write(file, values)

    monkeypatch.setattr(MetricsFile, "write", until)
    words = {**TINY, **settings, "arms": arms}
    assert command("run", "orders", "--folder", str(tmp_path / "killed"), **words) == 130
    monkeypatch.undo()
    assert finish("orders", tmp_path / "killed", arms=arms, **settings)["rows"] == whole["rows"]
    for name in ("metrics.jsonl", "checkpoints/seed0/ppo-last/model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_reference_of_a_text_task_moves_to_better_weights(tmp_path):
    settings = {**SMALL, "offline.steps": "16", "offline.sampling": "none", "offline.lr": "1e-2"}
    settings["offline.reference_update"] = "1e-6"
    finish("orders", tmp_path, arms="a_lol,nll", **settings)
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "seed0-a_lol.jsonl").read_text().splitlines()]
    expected, best = 0, lines[0]["eval_reward"]
    for line in lines[1:]:
        if line["eval_reward"] > best + 1e-6:
            expected, best = line["step"], line["eval_reward"]
        assert line["reference_step"] == expected
    assert expected > 0 and not list((tmp_path / "completions").glob("*-now-*"))
    assert "reference_step" not in (tmp_path / "metrics" / "seed0-nll.jsonl").read_text()


def test_expert_iteration_imitates_the_best_of_its_own_completions(tmp_path, monkeypatch):
    settings = {"text.prompts": "12", "text.validation_prompts": "6", "eval.episodes": "5", "seeds": "0"}
    settings |= {"offline.rounds": "2", "offline.round_episodes": "4", "offline.steps": "8", "offline.eval_every": "4"}
    arms = "reference,expert-iteration,rvs"
    whole = finish("orders", tmp_path / "whole", arms=arms, **settings)
    assert [row["checkpoint"] for row in whole["rows"] if row["arm"] == "expert-iteration"] == [""] * 2
    metrics = tmp_path / "whole" / "metrics" / "seed0-expert-iteration.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(line["step"], line["steps"]) for line in lines] == [(0, 8), (4, 8), (8, 8)]
    assert lines[0]["written_reward"] == lines[1]["written_reward"] and "eval_reward" in lines[2]
    assert not list((tmp_path / "whole" / "completions").glob("*own*"))
    [told] = (tmp_path / "whole" / "completions").glob("rvs-seed0-best-test-greedy.jsonl")
    plain = told.with_name("reference-seed0-only-test-greedy.jsonl")
    both = zip(told.read_text().splitlines(), plain.read_text().splitlines(), strict=True)
    for asked, before in (map(json.loads, pair) for pair in both):
        assert asked["prompt"] == before["prompt"] and asked["meta"][KEY] == "Reward 10 of 10. "
        assert KEY not in before["meta"]

    def until(file, values, write=MetricsFile.write):
        if file.shared["arm"] == "expert-iteration" and values["step"] == 8:
            raise KeyboardInterrupt
        return write(file, values)

    monkeypatch.setattr(MetricsFile, "write", until)
    words = {**TINY, **settings, "arms": arms}
    assert command("run", "orders", "--folder", str(tmp_path / "killed"), **words) == 130
    monkeypatch.undo()
    assert finish("orders", tmp_path / "killed", arms=arms, **settings)["rows"] == whole["rows"]


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (("run", "orders"), {"arms": "nul"}, "unknown arm of a text task 'nul' (did you mean 'nll'?)"),
        (("run", "orders"), {"eval.splits": "tests"}, "unknown split 'tests' (did you mean 'test'?)"),
        (
            ("run", "hha"),
            {"text.data": "nowhere", "model.source": "scratch"},
            "no train samples (looked in nowhere; `reflectrl data hha",
        ),
        (
            ("run", "orders"),
            {"rewards.fluency": "1.0"},
            "reward Fluency: model 'textattack/roberta-base-CoLA' is neither",
        ),
        (("run", "orders"), {"processes": "2"}, "a text task runs in one process"),
        (
            ("offline", "--data", "rows.jsonl", "--model", "m"),
            {"algo": "ppo"},
            "make it an arm of a text task with [rewards]: reflectrl run RECIPE --arms reference,ppo",
        ),
    ],
)
def test_mistakes_are_answered_in_one_line(words, settings, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(*words, **settings) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1

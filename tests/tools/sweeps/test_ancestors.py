"""A policy that is loaded from another run (`--load`) has one learning curve with its ancestors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.runs.report import write_report
from reflectrl.runs.report.ancestors import with_ancestors
from reflectrl.runs.report.data import Run, read_ancestors, read_run
from reflectrl.runs.report.learned import by_episodes, by_minutes
from reflectrl.runs.report.plots import curve
from reflectrl.tools.sweeps.compare import comparison

Values = list[tuple[int, float]]


def rows(run: Path, arm: str, seed: int = 0) -> list[dict[str, float]]:
    """The lines of an arm's online RL as they lie in the folder."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if (line["kind"], line["arm"], line["seed"]) == ("rl", arm, seed)]


def logged(run: Path, arm: str, name: str, seed: int = 0) -> Values:
    return [(int(row["step"]), row[name]) for row in rows(run, arm, seed) if name in row]


def drawn(run: Run, arm: str, name: str, seed: int = 0) -> Values:
    """The points of a curve in the report."""
    mine = [
        metric for metric in with_ancestors(run).metrics if (metric.kind, metric.arm, metric.seed) == ("rl", arm, seed)
    ]
    return [(step, values[0]) for step, values in curve(mine, name).items()]


def later(values: Values, updates: int) -> Values:
    return [(step + updates, value) for step, value in values]


@pytest.fixture(scope="module")
def parent(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run, as three updates of four episodes, in a folder that tests may move."""
    return Path(shutil.copytree(finished, tmp_path_factory.mktemp("family") / "parent"))


@pytest.fixture(scope="module")
def child(parent: Path, recipe_file: Path) -> Path:
    """Two more updates of six episodes from its policy, with two seeds."""
    folder = parent.with_name("child")
    words = ["--arms", "rl-only", "--rl.updates", "2", "--rl.episodes", "6", "--seeds", "0,1"]
    assert main(["run", str(recipe_file), "--folder", str(folder), "--load", str(parent), *words]) == 0
    return folder


@pytest.fixture(scope="module")
def grandchild(child: Path, recipe_file: Path) -> Path:
    folder = child.with_name("grandchild")
    words = ["--arms", "rl-only", "--rl.updates", "1", "--rl.curriculum", "none"]
    assert main(["run", str(recipe_file), "--folder", str(folder), "--load", str(child), *words]) == 0
    return folder


def test_the_curve_goes_on_at_the_ancestors_last_update_and_episode(parent: Path, child: Path) -> None:
    run = read_run(child)
    before = logged(parent, "reflect-rl", "eval_success")
    assert [step for step, _ in before] == [0, 1, 2, 3]
    for seed in (0, 1):  # both began from the same policy
        own = logged(child, "rl-only", "eval_success", seed)
        assert [step for step, _ in own] == [0, 1, 2]
        assert drawn(run, "rl-only", "eval_success", seed) == before[:3] + later(own, 3)
        losses = logged(parent, "reflect-rl", "loss") + later(logged(child, "rl-only", "loss", seed), 3)
        assert drawn(run, "rl-only", "loss", seed) == losses and [step for step, _ in losses] == [0, 1, 2, 3, 4]
    points = by_episodes(with_ancestors(run).metrics, "rl-only", 1)
    assert [episodes for episodes, _ in points] == [0, 4, 8, 12, 12, 18, 24]
    assert [won for _, won in points] == [won for _, won in before + logged(child, "rl-only", "eval_success", 1)]
    minutes = by_minutes(with_ancestors(run).metrics, with_ancestors(run).times, "rl-only", 0)
    spent = [line["seconds"] / 60 for each in (read_run(parent), run) for line in each.times if line.get("kind") == "rl"
             and line["seed"] == 0]  # fmt: skip
    assert minutes[-1][0] == pytest.approx(sum(spent)) and len(minutes) == 6


def test_the_report_says_so_and_needs_no_ancestor(child: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(child, tmp_path / "alone"))
    page = write_report(alone).read_text(encoding="utf-8")
    assert page.count("up to update 3 (episode 12), it is that of parent (reflect-rl, seed 0).") == 2


def test_a_chain_of_runs_is_one_curve(parent: Path, child: Path, grandchild: Path) -> None:
    run = read_run(grandchild)
    assert [(each.run, each.updates, each.episodes) for each in run.ancestors] == [("parent", 3, 12), ("child", 2, 12)]
    whole = logged(parent, "reflect-rl", "loss") + later(logged(child, "rl-only", "loss"), 3)
    assert drawn(run, "rl-only", "loss") == whole + later(logged(grandchild, "rl-only", "loss"), 5)
    page = write_report(grandchild).read_text(encoding="utf-8")
    assert "parent (reflect-rl, seed 0); up to update 5 (episode 24), it is that of child (rl-only, seed 0)." in page


def test_compared_runs_continue_each_other_where_both_are_given(
    parent: Path, child: Path, grandchild: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(parent, tmp_path / "moved"))
    runs = [read_run(folder) for folder in (grandchild, moved, child)]
    combined = comparison(runs, ["grandchild", "moved", "child"])
    assert combined.lineage == (
        "grandchild continues the policy of child · rl-only: its curve of online RL begins at update 5 (episode 24).",
        "child continues the policy of moved · reflect-rl: its curve of online RL begins at update 3 (episode 12).",
    )
    without = comparison(runs[::2], ["grandchild", "child"])
    assert [line.partition("begins")[2] for line in without.lineage] == [" at update 2 (episode 12)."]
    assert comparison(runs[:2], ["grandchild", "moved"]).lineage == ()
    page = tmp_path / "page.html"
    assert main(["compare", str(moved), str(child), "--out", str(page)]) == 0
    assert "child continues the policy of moved · reflect-rl" in page.read_text(encoding="utf-8")


def test_a_continued_run_keeps_what_it_has_copied(
    parent: Path, child: Path, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = (child / "ancestors.json").read_bytes()
    words = ["--arms", "rl-only", "--rl.updates", "2", "--rl.episodes", "6", "--seeds", "0,1"]
    command = ["run", str(recipe_file), "--folder", str(child)]
    assert main([*command, "--load", str(parent), *words]) == 0
    assert (child / "ancestors.json").read_bytes() == kept
    assert main([*command, "--load", str(parent), "--load-arm", "sft", *words]) == 2
    assert "model.policy" in capsys.readouterr().err and (child / "ancestors.json").read_bytes() == kept


def test_a_fork_takes_the_ancestors_over(child: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    words = ["--folder", str(fork), "--fork", str(child), "--eval.batch", "4"]
    assert main(["run", str(child / "recipe.toml"), *words]) == 0
    assert read_run(fork).ancestors == read_run(child).ancestors != ()


def test_a_policy_without_online_rl_has_no_curve(parent: Path, recipe_file: Path, tmp_path: Path) -> None:
    words = ["--arms", "rl-only", "--load", str(parent), "--load-arm", "sft", "--rl.updates", "2"]
    assert main(["run", str(recipe_file), "--folder", str(tmp_path / "run"), *words]) == 0
    run = read_run(tmp_path / "run")
    assert not (tmp_path / "run" / "ancestors.json").exists() and with_ancestors(run) == run


@pytest.mark.parametrize(
    "text",
    ["nonsense", "[]", '{"policy": "p"}', '{"policy": "p", "ancestors": [{"run": "a", "arm": "b", "seed": 0}]}',
     '{"policy": "p", "ancestors": [{"run": "a", "arm": "b", "seed": 0, "metrics": [], "times": []}]}',
     '{"policy": "p", "ancestors": [{"run": "a", "arm": "b", "seed": 0, "metrics": [{"kind": "rl"}], "times": []}]}'],
)  # fmt: skip
def test_a_damaged_copy_is_named(child: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "ancestors.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"ancestors\.json: not a list of ancestors: "):
        read_run(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["step", "kind", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
ENTRY = st.fixed_dictionaries({"run": JSON, "arm": JSON, "seed": st.integers() | JSON, "metrics": JSON, "times": JSON})


@given(JSON | st.fixed_dictionaries({"policy": st.just("p"), "ancestors": st.lists(ENTRY, max_size=2) | JSON}))
def test_any_content_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, data: object) -> None:
    path = tmp_path_factory.getbasetemp() / "ancestors.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    try:
        ancestors = read_ancestors(path, {"model": {"policy": "p"}})
    except UserError as error:
        assert "ancestors.json: not a list of ancestors: " in str(error) and "\n" not in str(error)
    else:
        assert all(ancestor.metrics for ancestor in ancestors)


def test_the_ancestors_of_another_policy_are_not_drawn(child: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(child, tmp_path / "other"))
    text = (other / "recipe.toml").read_text(encoding="utf-8")
    (other / "recipe.toml").write_text(text.replace("rl-reflect-rl", "policy"), encoding="utf-8")
    assert read_run(child).ancestors and read_run(other).ancestors == ()

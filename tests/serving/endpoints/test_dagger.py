"""DAgger in rounds: each begins with what the one before has trained, and adds to what it was taught."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from reflectrl import runs as pipeline
from reflectrl.core.config import Recipe, load_recipe
from reflectrl.core.episodes import read_episodes
from reflectrl.runs import graph_lines
from tests.serving.endpoints.scripted import ChatServer
from tests.serving.endpoints.test_runs import best, expert

RECIPE = """
name = "rounds"
arms = ["sft", "dagger", "dagger-2", "dagger-3"]
env = {name = "corridor", train = 4, validation = 2, test = 3}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 1, noise = [0.0]}
sft = {steps = 4, batch_size = 8, eval_every = 2, eval_rows = 8}
eval = {splits = ["test"], batch = 3}
"""


def recipe_of(folder: Path, text: str = RECIPE) -> Recipe:
    (folder / "rounds.toml").write_text(text, encoding="utf-8")
    return load_recipe(folder / "rounds.toml", trust=True)


def test_every_round_adds_the_walks_of_the_pair_that_the_one_before_has_trained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline.run(recipe_of(tmp_path), run)
    logs = [list(read_episodes(run / f"episodes/{name}-seed0-train.jsonl"))
            for name in ("teach", "dagger", "dagger-2", "dagger-3")]  # fmt: skip
    for before, after in pairwise(logs):
        assert after[: len(before)] == before and len(after) == len(before) + 4
        walked = after[len(before) :]
        assert {one.provenance["player"] for one in walked} == {"student"}
        assert all(step.label == "positive" for one in walked for step in one.steps)
    seeds = {one.seed for log in logs[1:] for one in log[-4:]}
    assert len(seeds) == 12, "no round walks with the chance of another"
    page = (run / "report.html").read_text(encoding="utf-8")
    section = page[page.index("Success by DAgger round") :]
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", section[: section.index("</section>")], re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    labels = [sum(step.label is not None for one in log for step in one.steps) for log in logs]
    assert [int(row[0]) for row in cells] == [len(log) for log in logs]
    assert [int(row[1]) for row in cells] == labels
    assert [row[2] for row in cells] == ["–", *(str(after - before) for before, after in pairwise(labels))]
    assert float(cells[1][3]) == 100 * sum(one.success for one in logs[1][-4:]) / 4
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert {row["arm"] for row in results["rows"]} == {"sft", "dagger", "dagger-2", "dagger-3"}
    whole = {row["arm"]: 100 * row["success"] for row in results["summary"] if row["stage"] == "full"}
    assert [float(row[4].split()[0]) for row in cells] == pytest.approx(list(whole.values()), abs=0.05)


def test_a_later_round_alone_makes_those_before_it(tmp_path: Path) -> None:
    text = RECIPE.replace('["sft", "dagger", "dagger-2", "dagger-3"]', '["dagger-2"]')
    lines = graph_lines(recipe_of(tmp_path, text), tmp_path / "run")
    made = [line.split(":")[0].split(maxsplit=1)[1].strip() for line in lines]
    order = ["dagger train (seed 0)", "sft dagger-policy (seed 0)", "dagger 2 (seed 0)", "sft dagger-2-policy (seed 0)"]
    assert [name for name in made if name in order] == order


def test_an_endpoint_labels_every_round_and_is_asked_nothing_twice(
    tmp_path: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-key")
    server.reply = expert
    asked = f'[endpoint]\nbase_url = "{server.url}"\nmodel = "m"\nkey_env = "TEST_KEY"\nmax_requests = 2000\n'
    text = RECIPE.replace("teach = {", 'teach = {by = "endpoint", ').replace(', "dagger-3"', "") + asked
    pipeline.run(recipe_of(tmp_path, text), tmp_path / "run")
    requests = len(server.requests)
    for path in [*(tmp_path / "run/episodes").glob("dagger*"), *(tmp_path / "run/checkpoints/seed0").glob("dagger*/*")]:
        path.unlink()
    pipeline.run(recipe_of(tmp_path, text), tmp_path / "run")
    assert len(server.requests) == requests, "the same walks are labelled from the journal"
    [*_, last] = read_episodes(tmp_path / "run/episodes/dagger-2-seed0-train.jsonl")
    named = [step.observation.actions[step.target] for step in last.steps if step.target is not None]
    assert named == [best(step.observation.text) for step in last.steps]

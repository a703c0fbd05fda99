"""The page as a file: what it says, what it never loads, and what it does about missing or corrupt parts."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.types import Choice, Episode, Observation, Reflection, Step, Task, UserError
from reflectrl.runs.report import write_report

NASTY = '</script><script>document.title="broken"</script><!-- <b>&amp;'


def page_of(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def embedded(page: str) -> dict[str, Any]:
    """The episodes as the page's script finds them: up to the first end tag, as a browser cuts it."""
    found = re.search(r'<script type="application/json" id="episode-data">(.*?)</script', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def words(page: str) -> str:
    """The text of the page without tags, styles and scripts, as one line."""
    page = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def episode(
    arm: str, task: str, success: bool, seed: int = 0, texts: str = "map", reflection: str | None = None
) -> Episode:
    observation = Observation("", texts, ("left", "right"))
    choice = Choice("policy", "right", 1, (1, 0), (0.25, 0.75))
    turns = (Reflection("reflector", reflection), choice) if reflection else (choice,)
    told = {"arm": arm, "seed": seed, "split": "test", "sampling": "greedy"}
    return Episode(Task(task, "toy"), (Step(observation, turns, 1, 0.5, ("won",)),), success, False, seed, told)


@pytest.fixture(scope="module")
def whole_page(finished_run: Path) -> str:
    return page_of(finished_run)


# ---- what the page says --------------------------------------------------------------------------------------------


def test_header_names_what_was_run(whole_page: str) -> None:
    text = words(whole_page)
    for said in (
        "Environment corridor",
        "Horizon 20 steps",
        "Seeds 0, 1, 2",
        "Commit 1124ebe3",
        "Date 2026-03-14 15:09",
    ):
        assert said in text
    assert "length = 9, rules = true" in text
    assert "2 cores, 8 GB memory, no accelerator" in text


def rows_of_table(page: str, split: str) -> dict[str, str]:
    """Arm → the html of its row in the table of a split."""
    part = page[page.index(f"<h3>{split} ") :]
    part = part[part.index("<tbody>") : part.index("</tbody>")]
    rows = re.findall(r"<tr.*?</tr>", part, re.DOTALL)
    return {words(row.split("</th>")[0]): row for row in rows}


def test_every_arm_has_its_row_with_the_summary_numbers(finished_run: Path, whole_page: str) -> None:
    summary = json.loads((finished_run / "results.json").read_text())["summary"]
    rows = rows_of_table(whole_page, "test")
    assert list(rows)[:2] == ["random", "expert"]
    assert list(rows)[-1] == "reflect-rl"
    for score in summary:
        if score["split"] == "test":
            text = words(rows[score["arm"]])
            assert f"{100 * score['success']:.1f}" in text
            assert f"{100 * score['low']:.1f}–{100 * score['high']:.1f}" in text
            assert f"{score['return']:.2f}".replace("-", "−") in text


def results_with(folder: Path, **successes: float) -> None:
    common = {"split": "test", "stage": "full", "sampling": "greedy", "seed": 0, "return": 0.0}
    rows = [{"arm": arm.replace("_", "-"), "success": share, **common} for arm, share in successes.items()]
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"rows": rows}))


def test_best_is_marked_among_learned_arms_only(tmp_path: Path) -> None:
    results_with(tmp_path / "run", expert=1.0, sft=0.4, reflect_rl=0.9)
    rows = rows_of_table(page_of(tmp_path / "run"), "test")
    marked = {arm: 'class="success best"' in row for arm, row in rows.items()}
    assert marked == {"expert": False, "sft": False, "reflect-rl": True}


def test_ties_are_all_marked(tmp_path: Path) -> None:
    results_with(tmp_path / "run", sft=0.9, rl_only=0.2, reflect_rl=0.9)
    rows = rows_of_table(page_of(tmp_path / "run"), "test")
    marked = {arm: 'class="success best"' in row for arm, row in rows.items()}
    assert marked == {"sft": True, "rl-only": False, "reflect-rl": True}


def test_nothing_is_marked_that_is_no_better_than_random_play(tmp_path: Path) -> None:
    results_with(tmp_path / "run", random=0.5, sft=0.5, rl_only=0.25)
    page = page_of(tmp_path / "run")
    assert 'class="success best"' not in page and '<p class="lead">' not in page


ROW: dict[str, Any] = {"arm": "sft", "split": "test", "stage": "full", "sampling": "greedy", "seed": 0, "success": 0.5}


def test_greedy_play_of_the_test_split_stands_first_and_the_rest_is_folded(tmp_path: Path) -> None:
    kinds = [("train", "greedy"), ("test", "sampled"), ("test", "greedy")]
    rows = [{**ROW, "split": split, "sampling": sampling} for split, sampling in kinds]
    (tmp_path / "results.json").write_text(json.dumps({"rows": rows}))
    page = page_of(tmp_path)
    titles = re.findall(r'<h3>(\w+) <span class="soft">· (\w+)</span></h3>', page)
    assert titles == [("test", "greedy"), ("test", "sampled"), ("train", "greedy")]
    folded = page.index("Other splits and ways of playing (2)")
    assert page.index("· greedy") < folded < page.index("· sampled")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0123, "0.012"), (0.5, "0.50"), (3.21, "3.2"), (75.3, "75"), (0.0, "0.0")]
)
def test_seconds_have_two_digits_that_count(tmp_path: Path, seconds: float, shown: str) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"rows": [{**ROW, "seconds": seconds}]}))
    assert f'<td class="n">{shown}</td>' in page_of(tmp_path)


def test_a_return_that_rounds_to_zero_has_no_sign(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"rows": [{**ROW, "return": -0.004}]}))
    page = page_of(tmp_path)
    assert "−0.00" not in page and "0.00</td>" in page


def test_shares_that_were_recorded_have_columns(tmp_path: Path) -> None:
    common = {"split": "test", "stage": "full", "sampling": "sampled", "seed": 0, "success": 0.5}
    rows = [{**common, "arm": "sft", "pass@2": 0.75}, {**common, "arm": "large", "pass@2": 1.0, "illegal": 0.125}]
    (tmp_path / "results.json").write_text(json.dumps({"rows": rows}))
    page = page_of(tmp_path)
    assert re.findall(r'<th scope="col" class="n">(pass@2|illegal)</th>', page) == ["pass@2", "illegal"]
    found = {
        arm: re.findall(r'<td class="n">([^<]*)</td>', row)[:2] for arm, row in rows_of_table(page, "test").items()
    }
    assert found == {"sft": ["75.0", "–"], "large": ["100.0", "12.5"]}


def test_rows_stand_in_for_a_missing_summary(tmp_path: Path) -> None:
    common = {"arm": "sft", "split": "test", "stage": "full", "sampling": "greedy"}
    rows = [{**common, "seed": seed, "success": share} for seed, share in ((0, 0.25), (1, 0.75))]
    (tmp_path / "results.json").write_text(json.dumps({"rows": rows}))
    found = rows_of_table(page_of(tmp_path), "test")
    assert {arm: "25.0" in row for arm, row in found.items()} == {"sft seed 0": True, "sft seed 1": False}


def test_each_part_of_training_has_its_curves(whole_page: str) -> None:
    text = words(whole_page)
    for title in ("Success in training", "Success on validation tasks", "Entropy of the choice", "Validation loss"):
        assert title in text
    for part in ("Reinforcement learning", "fine-tuning of the reflector", "policy, with reflections"):
        assert part in text
    assert "bands extend from the lowest seed to the highest" in text


def test_ids_are_unique_and_every_reference_finds_one(whole_page: str) -> None:
    page = re.sub(r"<script\b.*?</script>", "", whole_page, flags=re.DOTALL)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)) and not {
        a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)
    } - set(ids)


# ---- what it never does --------------------------------------------------------------------------------------------


def test_the_page_loads_nothing(whole_page: str) -> None:
    assert not re.search(r"https?:", whole_page)
    assert not re.search(
        r"""(?:src|href)\s*=(?!\s*["'`]?#)|@import|url\((?!#)|<link|<img|fetch\(|XMLHttp""", whole_page
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', whole_page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "'unsafe-inline'" not in policy[1].split("script-src")[1]


def test_pyplot_stays_out(finished_run: Path) -> None:
    before = set(sys.modules)
    write_report(finished_run)
    assert "matplotlib.pyplot" not in set(sys.modules) - before


def test_the_same_run_gives_the_same_page(finished_run: Path, whole_page: str) -> None:
    assert page_of(finished_run) == whole_page


def test_only_the_finished_page_is_left(finished_run: Path, whole_page: str) -> None:
    assert [path.name for path in finished_run.glob("*report*")] == ["report.html"]


def test_texts_of_an_episode_cannot_break_out(small_run: Callable[[list[Episode]], Path]) -> None:
    page = page_of(small_run([episode("sft", NASTY, True, texts=NASTY, reflection=NASTY)]))
    shown = embedded(page)["episodes"][0]
    assert (shown["task"], shown["steps"][0]["state"], shown["steps"][0]["reflection"]) == (NASTY, NASTY, NASTY)
    assert 'document.title="broken"' not in page
    assert page.count("</script") == 2


def test_texts_of_results_and_recipe_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "<b>bold"\n')
    row = {"arm": "<i>x $_$", "split": "<u>", "stage": "<s>", "sampling": "<q>", "success": 0.5, "seed": 0}
    metric = {"arm": "<i>y", "kind": "<rl>", "step": 1, "success": 0.5, "stage": "<p>"}
    (tmp_path / "results.json").write_text(json.dumps({"rows": [row], "commit": "<i>c"}))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(metric) + "\n")
    page = page_of(tmp_path)
    assert not re.search(r"<b>bold|<i>[xyc]|<u>|<s>|<q>|<rl>|<p>\"", page)


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb", "\x1b[31m", "\u202e", "\0", "x" * 100_000, "$\\frac{$", "\n"])
def test_any_name_of_an_arm_has_its_row(tmp_path: Path, name: str) -> None:
    row = {"arm": name, "split": name, "stage": name, "sampling": name, "success": 0.5, "seed": 0}
    metric = {"arm": name, "kind": name, "step": 1, "success": 0.5, "stage": name, name: 1.0}
    results = {"rows": [row], "commit": name, "recipe": name, "env": {name: name}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(metric) + "\n")
    (tmp_path / "timings.jsonl").write_text(json.dumps({"finished": name}) + "\n")
    page = page_of(tmp_path)
    page.encode("utf-8")
    assert "50.0" in page


@pytest.mark.parametrize("deep", ["[" * 1_000_000, '{"rows":' * 300_000])
@pytest.mark.parametrize("name", ["results.json", "metrics.jsonl", "timings.jsonl", "ancestors.json"])
def test_deep_nesting_is_named(tmp_path: Path, name: str, deep: str) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"rows": []}))
    (tmp_path / name).write_text(deep + "\n")
    with pytest.raises(UserError, match=rf"{name}.*too deeply nested"):
        page_of(tmp_path)


@pytest.mark.parametrize("name", ["recipe.toml", "results.json", "metrics.jsonl", "timings.jsonl"])
def test_a_pipe_or_a_device_in_a_folder_is_named_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name}: .*not a regular file"):
        page_of(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match=rf"{name}: .*not a regular file"):
        page_of(tmp_path)


# ---- which episodes it shows ---------------------------------------------------------------------------------------


def test_sample_is_capped_balanced_and_stated(small_run: Callable[[list[Episode]], Path]) -> None:
    many = [episode("sft", f"t{i}", i % 10 > 0, seed=i % 3) for i in range(300)]
    page = page_of(small_run([*many, episode("reflect-rl", "t1", True)]))
    shown = embedded(page)["episodes"]
    kinds = [(e["arm"], e["success"]) for e in shown]
    assert {kind: kinds.count(kind) for kind in kinds} == {("sft", True): 8, ("sft", False): 8, ("reflect-rl", True): 1}
    assert {e["seed"] for e in shown} == {0, 1, 2}
    assert "17 of 301 evaluation episodes are in this page" in words(page)


def test_arms_show_the_same_tasks(small_run: Callable[[list[Episode]], Path]) -> None:
    one = [episode("sft", f"t{i}", True) for i in range(50)]
    other = [episode("reflect-rl", f"t{i}", True) for i in reversed(range(50))]
    shown = embedded(page_of(small_run([*one, *other])))["episodes"]
    tasks = {arm: {e["task"] for e in shown if e["arm"] == arm} for arm in ("sft", "reflect-rl")}
    assert tasks["sft"] == tasks["reflect-rl"]


def test_teaching_episodes_stay_out(small_run: Callable[[list[Episode]], Path]) -> None:
    folder = small_run([episode("sft", "seen", True)])
    shutil.copy(folder / "episodes" / "eval-some.jsonl", folder / "episodes" / "teach.jsonl")
    assert len(embedded(page_of(folder))["episodes"]) == 1


# ---- missing and corrupt parts -------------------------------------------------------------------------------------


def test_an_empty_run_gives_a_page_that_says_so(tmp_path: Path) -> None:
    text = words(page_of(tmp_path))
    for said in ("No results yet", "No metrics yet", "No episodes yet", "Environment not recorded"):
        assert said in text


def test_an_arm_that_was_judged_on_one_stage_only_leaves_a_gap(tmp_path: Path) -> None:
    common = {"split": "test", "sampling": "greedy", "success": 0.5, "seed": 0}
    rows = [{**common, "arm": "sft", "stage": stage} for stage in ("key", "full")]
    rows.append({**common, "arm": "endpoint", "stage": "key", "success": 0.25})
    (tmp_path / "results.json").write_text(json.dumps({"rows": rows}))
    found = rows_of_table(page_of(tmp_path), "test")
    assert words(found["endpoint"]).startswith("endpoint 25.0 – –")


FIELDS = '"arm": "a", "split": "b", "stage": "c", "sampling": "d", "success": 0.5'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"rows": [', "not valid JSON"),
        ("[" * 100_000, "too deeply nested"),
        ("[]", 'a list "rows"'),
        ('{"rows": [3]}', "rows[0] must be an object"),
        ('{"rows": [{"arm": "sft", "stage": "full", "sampling": "greedy"}]}', "rows[0].split must be text"),
        (
            '{"rows": [{"arm": "a", "split": "b", "stage": "c", "sampling": "d", "success": "high"}]}',
            "rows[0].success must be a number, not 'high'",
        ),
        ('{"rows": [], "summary": 3}', '"summary" must be a list'),
        (f'{{"rows": [{{{FIELDS}, "reliability": 3}}]}}', "rows[0].reliability must be a list of bins"),
        (
            f'{{"rows": [{{{FIELDS}, "reliability": [[1, 0.5, 1], ["x", 1, 1]]}}]}}',
            "rows[0].reliability[1] must hold three numbers",
        ),
        (f'{{"rows": [{{{FIELDS}, "reliability": [[1, 2]]}}]}}', "rows[0].reliability[0] must hold three numbers"),
        (f'{{"rows": [{{{FIELDS}, "low": 1{"0" * 400}}}]}}', "rows[0].low must be a number, not 1000"),
    ],
)
def test_corrupt_results_are_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UserError) as error:
        write_report(tmp_path)
    assert str(tmp_path / "results.json") in str(error.value)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_recipe_of_another_version_is_shown_all_the_same_but_one_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        'name = "old"\nseeds = [4]\ngone = 1\n[env]\nname = "corridor"\nhorizon = 25\n'
    )
    text = words(page_of(tmp_path))
    assert "old" in text
    assert "Horizon 25 steps" in text
    assert "Seeds 4" in text
    (tmp_path / "recipe.toml").write_text("name = ")
    with pytest.raises(UserError, match=r"recipe\.toml: not valid TOML"):
        write_report(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere is not a run folder"):
        write_report(tmp_path / "nowhere")


def test_a_torn_last_line_of_metrics_is_left_out_but_a_bad_line_before_it_is_named(tmp_path: Path) -> None:
    good = json.dumps({"arm": "sft", "kind": "sft", "seed": 0, "step": 1, "loss": 0.5})
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n{good[:20]}")
    assert "Training loss" in words(page_of(tmp_path))
    (tmp_path / "metrics.jsonl").write_text(f"{good}\nnonsense\n{good}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: "):
        write_report(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        '{"arm": "sft", "seconds": "long", "episodes": 3}',
        '{"arm": "sft", "seconds": 1, "episodes": 1%s}' % ("0" * 400),
        '{"arm": ["sft"], "seconds": 1, "episodes": 3}',
        '{"arm": "sft", "kind": "rl", "seed": 0, "seconds": 1}',
    ],
)
def test_a_bad_line_of_timings_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "results.json").write_text(f'{{"rows": [{{{FIELDS}}}]}}')
    (tmp_path / "timings.jsonl").write_text(f'{{"finished": "today"}}\n{line}\n')
    with pytest.raises(UserError, match=r"timings\.jsonl:2: "):
        write_report(tmp_path)


def test_numbers_too_large_to_plot_are_left_out(tmp_path: Path) -> None:
    line = '{"arm": "sft", "kind": "sft", "seed": 0, "step": 1, "loss": 0.5, "odd": 1%s}' % ("0" * 400)
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    assert "Training loss" in words(page_of(tmp_path))


def test_a_step_that_is_no_finite_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"arm": "sft", "kind": "sft", "step": Infinity, "loss": 0.5}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: "):
        write_report(tmp_path)

"""`judge` and `compare` on run folders."""

import csv
import json

import pytest

from reflectrl.cli import main
from reflectrl.wings.text.generation.table import row_of
from reflectrl.wings.text.pipeline.results import columns
from reflectrl.wings.text.report import write_text_report
from reflectrl.wings.text.samples.sample import Sample


def results(arm: str, seeds: int = 1) -> dict:
    place = {"task": "toy", "arm": arm, "seed": 0, "checkpoint": "best", "split": "test", "sampling": "greedy"}
    samples = [Sample(str(i), str(i), "p", "a <b>", float(i), {"kind": 0.5}) for i in range(3)]
    line = vars(row_of(place, samples, {}, 0.95))
    line = {**line, "metrics": dict(line["metrics"])}
    summary = {key: value for key, value in line.items() if key != "seed"} | {
        "seeds": seeds,
        "interval": "t over seeds",
    }
    shared = {"kind": "text", "recipe": "<toy>", "task": "toy", "commit": "c", "hardware": "h", "confidence": 0.95}
    numbers = {f"p{p}": float(p) for p in (0, 50, 100)} | {"mean": 0.5, "positive": 0.3}
    spread = [{"seed": 0, "reward": numbers, "value": numbers, "advantage": numbers}]
    return {**shared, "rewards": ["kind"], "rows": [line], "summary": [summary], "percentiles": spread}


def folder(path, arm: str = "nll"):
    path.mkdir()
    (path / "results.json").write_text(json.dumps(results(arm)))
    return path


def test_compare_prints_several_runs_in_one_table(tmp_path, capsys):
    assert main(["compare", str(folder(tmp_path / "a")), str(folder(tmp_path / "b", "a_lol"))]) == 0
    said = capsys.readouterr().out
    assert said.count("toy, test prompts, greedy") == 1
    assert "nll" in said
    assert "a_lol" in said
    assert "1.000 [0.000, 2.000]" in said


def test_compare_writes_the_published_columns(tmp_path, capsys):
    runs = [folder(tmp_path / "a"), folder(tmp_path / "b", "a_lol")]
    (tmp_path / "b" / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"arm": "a_lol", "seed": 0, "step": step, "eval_reward": reward}) + "\n"
            for step, reward in ((0, 0.5), (9, 0.25))
        )
    )
    out = tmp_path / "final.csv"
    assert main(["compare", *map(str, runs), "-o", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["algorithm"] for row in rows] == ["nll", "a_lol"]
    assert rows[0]["test_gen final_reward"] == rows[0]["test_final_reward"] == "1.000"
    assert (rows[0]["test_gen kind"], rows[0]["val_gen kind"], rows[0]["best s"]) == ("0.500", "NA", "NA")
    assert [rows[1][key] for key in ("best s", "best V final_reward", "worst s")] == ["0", "0.500", "9"]
    assert main(["compare", str(runs[0]), "--out", str(tmp_path / "final.tex")]) == 0
    text = (tmp_path / "final.tex").read_text()
    assert "test\\_gen kind" in text and "val\\_gen" not in text and "toy & " in text
    capsys.readouterr()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recipe.toml").write_text('name = "other"\n')
    assert main(["compare", str(tmp_path / "other"), "-o", str(out)]) == 2
    assert "is for runs of text tasks" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "{}", "[]", "half a li"])
def test_compare_refuses_other_folders(tmp_path, capsys, text):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    assert main(["compare", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_compare_refuses_runs_of_different_kinds(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recipe.toml").write_text('name = "other"\n')
    assert main(["compare", str(folder(tmp_path / "a")), str(tmp_path / "other")]) == 2
    assert "of different kinds" in capsys.readouterr().err


def test_components_come_before_the_other_metrics():
    assert columns([{"metrics": {"meteor": 1, "length": 2, "kind": 3}}]) == ["kind", "length", "meteor"]


def test_the_page_holds_the_table_and_escapes_what_was_written(tmp_path):
    run = folder(tmp_path / "run")
    written = run / "completions" / "nll-seed0-best-test-greedy.jsonl"
    written.parent.mkdir()
    written.write_text(json.dumps({"id": "0", "group": "0", "prompt": "<p>", "completion": "<script>"}) + "\n")
    page = write_text_report(run).read_text()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "&lt;toy&gt;" in page
    assert page.count("<svg") >= 4
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_judge_names_what_is_missing(tmp_path, capsys):
    words = ["judge", str(folder(tmp_path / "run")), "--url", "http://127.0.0.1:9/v1", "--model", "m"]
    assert main(words) == 2
    assert "a_lol has not written anything there yet" in capsys.readouterr().err
    assert main([*words, "--key-env", "NO_SUCH_VARIABLE"]) == 2
    assert "the environment has no variable NO_SUCH_VARIABLE" in capsys.readouterr().err
    assert main([*words, "--key-env", "sk-pasted-by-mistake"]) == 2
    assert "pasted" not in capsys.readouterr().err

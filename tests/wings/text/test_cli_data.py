"""`reflectrl data hha|comet|reddit|knowledge` and `data convert`: what they write, what they say, what they refuse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.episodes import EpisodeLog
from reflectrl.core.types import Choice, Episode, Observation, Step, Task
from reflectrl.wings.text.samples import read_samples

FIXTURES = Path(__file__).parent / "samples" / "fixtures"
ROW = {"prefix": [["Hi?"], ["Hi?"]], "suffix": ["a", "b"], "reward": [1, 0], "sft_index": 0, "meta": {}}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stores are by default."""
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What a command prints."""
    assert main(["data", *map(str, words)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The one line on stderr with which words are refused."""
    assert main(["data", *map(str, words)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("reflectrl: ") and err.count("\n") == 1, err
    return err


def table(text: str) -> dict[str, list[int]]:
    """File → its numbers, of the table that is printed."""
    rows = re.findall(r"^  (\S+\.jsonl) +(\d+) +(\d+) +(\d+)$", text, re.M)
    return {name: [int(number) for number in numbers] for name, *numbers in rows}


class TestFamilies:
    @pytest.mark.parametrize(
        ("family", "folder", "expected"),
        [
            ("hha", "hha_rows", {"test.jsonl": [2, 1, 0], "train.jsonl": [6, 3, 0], "validation.jsonl": [2, 1, 0]}),
            ("comet", "comet10x", {"test.jsonl": [1, 1, 0], "train.jsonl": [4, 4, 0], "validation.jsonl": [1, 1, 0]}),
            ("reddit", "reddit", {"negative/train.jsonl": [3, 3, 0], "positive/train.jsonl": [3, 2, 0]}),
        ],
    )
    def test_the_store_is_filled_and_shown(
        self, capsys: Any, data: Path, family: str, folder: str, expected: dict[str, list[int]]
    ) -> None:
        out = said(capsys, family, "--from", FIXTURES / folder, "--held-out", "0")
        assert out.splitlines()[0] == str(data / family) and table(out) == expected
        assert said(capsys, family) == out
        assert (data / family / min(expected)).exists()

    def test_several_folders_a_style_and_a_store(self, capsys: Any, tmp_path: Path) -> None:
        folders = [FIXTURES / "knowledge" / name for name in ("wow", "faithdial")]
        out = said(capsys, "knowledge", "--from", *folders, "--style", "dialogpt", "--store", tmp_path / "s")
        assert table(out)["both/train.jsonl"] == [6, 5, 0]
        assert "not read: 1 files whose names do not say what they are: wow/data" in out
        first = json.loads((tmp_path / "s/wow/train.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert first["prompt"].endswith("<|endoftext|>") and "reward" not in first

    def test_rewards_that_are_numbers_of_a_model_are_pointed_out(self, capsys: Any, tmp_path: Path) -> None:
        path = tmp_path / "train.json"
        path.write_text(json.dumps({**ROW, "reward": [-2.5, 3]}), encoding="utf-8")
        assert "rewards: from -2.5 to 3; are they a reward model's numbers?" in said(capsys, "hha", "--from", path)
        assert "rewards: from 0.0758582 to 0.952574\n" in said(capsys, "hha", "--from", path, "--sigmoid")
        assert "rewards: least 0.0758582," in said(capsys, "convert", "--from", path, "--sigmoid")

    def test_what_is_left_out_and_ties_are_counted(self, capsys: Any) -> None:
        out = said(capsys, "hha", "--from", FIXTURES / "hha", FIXTURES / "hha_rows")
        assert "ties: 1 records whose answers have the same reward (kept)" in out
        assert re.search(r"left out: 1 rows, dialogues that differ before their last turn \(.*train.jsonl:6\)", out)


def broken(folder: Path) -> tuple[Path, dict[str, int]]:
    """An HHA file with three bad rows, and on which line each reason stands."""
    folder.mkdir()
    path = folder / "train.json"
    rows = [ROW, {**ROW, "reward": [float("nan"), 0]}, {**ROW, "suffix": ["a", 3]}]
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"prefix": [["Hi', encoding="utf-8")
    return path, {"reward is not finite": 2, "suffix must be text": 3, "broken JSON": 4}


class TestBadRows:
    def test_each_is_named_by_file_and_line(self, capsys: Any, tmp_path: Path, data: Path) -> None:
        path, reasons = broken(tmp_path / "raw")
        lines = path.read_text(encoding="utf-8").splitlines()
        for reason, line in reasons.items():
            path.write_text("\n".join([lines[0], lines[line - 1]]), encoding="utf-8")
            err = refused(capsys, "hha", "--from", tmp_path / "raw")
            assert f"{path}:2: {reason}" in err and "--skip-bad" in err
            assert f"{path}:2: {reason}" in refused(capsys, "convert", "--from", path)
        assert not list(data.glob("*"))

    def test_skip_bad_counts_them(self, capsys: Any, tmp_path: Path) -> None:
        path, reasons = broken(tmp_path / "raw")
        for words in (("hha", "--from", tmp_path / "raw", "--held-out", "0"), ("convert", "--from", path)):
            out = said(capsys, *words, "--skip-bad")
            for reason, line in reasons.items():
                assert f"skipped: 1 rows, {reason} ({path}:{line})" in out

    def test_an_unknown_relation_is_named_by_file_and_line(self, capsys: Any, tmp_path: Path) -> None:
        path = tmp_path / "train.tsv"
        path.write_text("X eats\txWant\tto rest\nX eats\txWnat\tto rest\n", encoding="utf-8")
        err = refused(capsys, "comet", "--from", path)
        assert f"{path}:2: unknown relation: 'xWnat' (did you mean 'xWant'?)" in err
        out = said(capsys, "comet", "--from", path, "--skip-bad", "--held-out", "0")
        assert f"skipped: 1 rows, unknown relation ({path}:2)" in out and table(out) == {"train.jsonl": [1, 1, 0]}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """HHA rows: a better second answer, and a tie."""
    path = tmp_path / "rows.jsonl"
    better, tied = {**ROW, "reward": [0.2, 0.9]}, {**ROW, "prefix": [["Bye?"], ["Bye?"]], "reward": [0.5, 0.5]}
    path.write_text("".join(json.dumps(row) + "\n" for row in (better, tied)), encoding="utf-8")
    return path


class TestConvert:
    def test_without_a_target_it_checks_and_counts(self, capsys: Any, rows: Path) -> None:
        out = said(capsys, "convert", "--from", rows)
        assert "4 samples of 2 prompts; 2 prompts have several, 1 of them tied" in out
        assert "rewards: least 0.2, median 0.5, 95 % 0.9, most 0.9" in out
        assert "prompts, characters: least 24," in out

    def test_preferences_for_trl(self, capsys: Any, rows: Path, tmp_path: Path) -> None:
        out = said(capsys, "convert", "--from", rows, "--as", "preference", "--to", tmp_path / "p.jsonl")
        assert out.endswith("p.jsonl: 1 rows, preference\n")
        assert [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()] == [
            {
                "prompt": "\n\nHuman: Hi?\n\nAssistant:",
                "chosen": " b",
                "rejected": " a",
                "score_chosen": 0.9,
                "score_rejected": 0.2,
            }
        ]

    def test_a_pair_whose_scores_disagree_is_not_turned_round_and_is_told(self, command: Any, tmp_path: Path) -> None:
        row = {"prompt": "p?", "chosen": " a", "rejected": " b", "score_chosen": 1, "score_rejected": 3}
        (tmp_path / "p.jsonl").write_text(json.dumps(row), encoding="utf-8")
        done = command("data", "convert", "--from", "p.jsonl", "--to", "o.jsonl", "--as", "preference")
        assert done.returncode == 0
        assert done.stderr.startswith("reflectrl: p.jsonl: 1 rows: score_chosen is below score_rejected; the columns")
        assert done.stderr.count("\n") == 1 and done.stderr.endswith("(first: p.jsonl:1)\n")
        again = json.loads((tmp_path / "o.jsonl").read_text(encoding="utf-8"))
        assert again == {**row, "score_chosen": 3.0, "score_rejected": 1.0}

    def test_a_json_list_is_read(self, capsys: Any, tmp_path: Path) -> None:
        rows = [{"prompt": "p?", "completion": f" {word}", "reward": 0.5} for word in ("one", "x")]
        (tmp_path / "list.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
        assert "2 samples of 1 prompts" in said(capsys, "convert", "--from", tmp_path / "list.json")

    def test_labels_for_trl(self, capsys: Any, rows: Path, tmp_path: Path) -> None:
        said(capsys, "convert", "--from", rows, "--as", "unpaired", "--threshold", "0.6", "--to", tmp_path / "u.jsonl")
        lines = (tmp_path / "u.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["label"] for line in lines] == [False, True, False, False]

    def test_demonstrations_are_given_a_reward(self, capsys: Any, tmp_path: Path) -> None:
        (tmp_path / "d.jsonl").write_text('{"prompt": "p", "completion": "c"}\n', encoding="utf-8")
        assert "d.jsonl:1: missing reward" in refused(capsys, "convert", "--from", tmp_path / "d.jsonl")
        said(capsys, "convert", "--from", tmp_path / "d.jsonl", "--missing-reward", "1", "--to", tmp_path / "o.jsonl")
        assert read_samples(tmp_path / "o.jsonl")[0].reward == 1.0

    def test_an_episode_log(self, capsys: Any, tmp_path: Path) -> None:
        turn = Choice("policy", "left", choice=0, logprobs=(-0.7,))
        step = Step(Observation("", "Here.", ("left", "right")), (turn,), 0, 1.0)
        with EpisodeLog(tmp_path / "log.jsonl") as log:
            log.append(Episode(Task("t", "e"), (step, step, step), True, False, 0))
        out = said(
            capsys,
            "convert",
            "--from",
            tmp_path / "log.jsonl",
            "--to",
            tmp_path / "o.jsonl",
            "--gamma",
            "0.5",
            "--unit",
        )
        assert "rewards 1.0 and 1.75 become 0 and 1" in out
        samples = read_samples(tmp_path / "o.jsonl")
        assert [one.reward for one in samples] == pytest.approx([1.0, 2 / 3, 0.0])
        assert [(one.logprob, one.meta["bounds"], one.completion) for one in samples] == [(-0.7, [1.0, 1.75], " 1")] * 3
        held_out = ("--from", tmp_path / "log.jsonl", "--to", tmp_path / "h.jsonl", "--bounds", "0", "6", "--words")
        said(capsys, "convert", *held_out)
        assert [(one.reward, one.completion) for one in read_samples(tmp_path / "h.jsonl")] == [
            (0.5, " left"),
            (pytest.approx(1 / 3), " left"),
            (pytest.approx(1 / 6), " left"),
        ]


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "fragment"),
        [
            (["hah"], "unknown benchmark 'hah' (did you mean 'hha'?)"),
            (["hha"], "--from DIR prepares some"),
            (["hha", "--from"], "--from needs a folder"),
            (["hha", "--from", "nowhere"], "nowhere: no such file or folder"),
            (["hha", "--form", "x"], "did you mean '--from'"),
            (["hha", "--from", str(FIXTURES / "hha"), "--held-out", "0.7"], "from 0 to below 0.5"),
            (["comet", "--from", str(FIXTURES / "comet10x"), "--style", "word"], "word"),
            (["reddit", "--from", str(FIXTURES / "hha")], "no .csv file"),
            (["reddit", "--skip_bda"], "did you mean '--skip-bad'"),
            (["convert"], "--from FILE"),
            (["convert", "--from", "nowhere"], "nowhere: No such file"),
            (["convert", "--from", "x", "--as", "dpo"], "dpo"),
            (["convert", "--from", "x", "--gamma", "2"], "gamma must be from 0 to 1"),
        ],
    )
    def test_a_mistake_is_one_line_and_leaves_nothing(
        self, capsys: Any, data: Path, words: list[str], fragment: str
    ) -> None:
        assert fragment in refused(capsys, *words)
        assert not list(data.glob("*"))

    def test_a_store_that_cannot_be_written(self, capsys: Any, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        words = ("hha", "--from", FIXTURES / "hha", "--store", tmp_path / "file")
        assert "cannot be written" in refused(capsys, *words)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["reasoning-gym"], "`reflectrl data reasoning-gym` writes them"),
        (["orders", "--text.task", "own", "--text.data", "mine"], "`reflectrl data convert --from FILE --to mine"),
        (["hha"], "`reflectrl data hha --from DIR` writes them"),
    ],
)
def test_a_run_without_data_names_a_verb_that_there_is(
    words: list[str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    assert main(["teach", *words, "--model.source", "scratch"]) == 2
    assert command in capsys.readouterr().err

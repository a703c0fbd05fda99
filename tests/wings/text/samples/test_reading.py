"""Files of samples: what is written is read back, every form is told by its columns, every bad row is named."""

import gzip
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.episodes import to_line as episode_line
from reflectrl.core.types import Choice, Episode, Observation, Step, Task, UserError
from reflectrl.wings.text.samples import (
    Reading,
    Sample,
    Samples,
    group_of,
    read_samples,
    to_trl,
    to_unit,
    write_samples,
)
from reflectrl.wings.text.samples.reading import form_of
from reflectrl.wings.text.samples.rows import BadRowError
from reflectrl.wings.text.samples.sample import summary, through_sigmoid
from reflectrl.wings.text.samples.writing import LineFile, to_line

words = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | words | numbers | st.booleans() | st.lists(st.integers(), max_size=2)
samples = st.builds(
    Sample,
    id=words,
    group=words,
    prompt=words,
    completion=words,
    reward=numbers,
    components=st.dictionaries(words, numbers, max_size=2),
    logprob=st.none() | numbers,
    meta=st.dictionaries(words, plain, max_size=2),
)


def write(path: Path, *rows: Any) -> Path:
    """A file with these rows, one per line; text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def hha(
    turns: list[str] | None = None, suffix: Any = ("Yes.", "No."), reward: Any = (0.2, 0.7), **more: Any
) -> dict[str, Any]:
    prefix = turns or ["<|prompter|>May I?", "<|assistant|>"]
    return {"prefix": [prefix] * len(suffix), "suffix": list(suffix), "reward": list(reward), "sft_index": 0, **more}


@settings(max_examples=60)
@given(written=st.lists(samples, min_size=1, max_size=4, unique_by=lambda sample: sample.id), packed=st.booleans())
def test_what_is_written_is_read_back(tmp_path_factory: Any, written: list[Sample], packed: bool) -> None:
    path: Path = tmp_path_factory.mktemp("s") / ("some.jsonl.gz" if packed else "some.jsonl")
    assert write_samples(path, written) == len(written)
    assert list(read_samples(path)) == written
    assert list(path.parent.iterdir()) == [path]


def test_packed_files_do_not_depend_on_the_clock(tmp_path: Path) -> None:
    one, two = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    for path in (one, two):
        write_samples(path, [Sample("a", "g", "p", "c", 1.0)])
    assert one.read_bytes() == two.read_bytes()


def test_a_failing_writer_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write_samples(path, [Sample("a", "g", "p", "c", 1.0)])
    before = path.read_bytes()
    with pytest.raises(UserError, match="sample 'b' has a number that is not finite"):
        write_samples(path, [Sample("a", "g", "p", "c", 2.0), Sample("b", "g", "p", "c", math.inf)])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"), LineFile(tmp_path / "file" / "s.jsonl"):
        pass


class TestForms:
    def test_both_responses_of_an_hha_row_are_samples_of_one_group_in_their_order(self, tmp_path: Path) -> None:
        path = write(tmp_path / "hh.json", hha(meta={"from": "x"}))
        first, second = read_samples(path)
        assert first.prompt == second.prompt == "\n\nHuman: May I?\n\nAssistant:"
        assert (first.completion, first.reward, second.completion, second.reward) == (" Yes.", 0.2, " No.", 0.7)
        assert first.group == second.group == group_of(first.prompt)
        assert (first.id, second.id) == ("hh:1.0", "hh:1.1")
        assert first.meta == {"sft_index": 0, "meta": {"from": "x"}}
        assert first.prompt is second.prompt  # held once

    def test_ties_are_kept_and_counted(self, tmp_path: Path) -> None:
        rows = [hha(["a", "b", f"q{i}"], reward=reward) for i, reward in enumerate([(1, 1), (0, 1), (0.5, 0.5)])]
        found = read_samples(write(tmp_path / "s.jsonl", *rows))
        assert (len(found), found.ties, len(found.groups())) == (6, 2, 3)

    def test_responses_to_different_dialogues_have_groups_of_their_own(self, tmp_path: Path) -> None:
        row = {**hha(suffix=("a", "b", "c"), reward=(1, 2, 3)), "prefix": [["x"], ["y"], ["x"]]}
        first, second, third = read_samples(write(tmp_path / "s.jsonl", row))
        assert first.group == third.group != second.group == group_of("\n\nHuman: y\n\nAssistant:")

    def test_more_than_two_responses(self, tmp_path: Path) -> None:
        path = write(tmp_path / "s.jsonl", hha(suffix=("a", "b", "c"), reward=(1, 2, 3)))
        assert [sample.reward for sample in read_samples(path)] == [1, 2, 3]

    @pytest.mark.parametrize(
        "turns",
        [
            ["<|prompter|>May I?", "<|assistant|>No.", "<|prompter|>Why?", "<|assistant|>"],
            ["Human: May I?", "Assistant: No.", "Human: Why?", "Assistant:"],
            ["\n\nHuman: May I?", "\n\nAssistant: No.", "\n\nHuman: Why?"],
            ["May I?", "No.", "Why?"],
        ],
    )
    def test_the_turns_of_a_prefix(self, tmp_path: Path, turns: list[str]) -> None:
        first, _ = read_samples(write(tmp_path / "s.jsonl", hha(turns)))
        assert first.prompt == "\n\nHuman: May I?\n\nAssistant: No.\n\nHuman: Why?\n\nAssistant:"

    def test_normalised_rows(self, tmp_path: Path) -> None:
        row = {"id": 7, "prompt_or_input_text": "Say", "meta_data": {"knowledge": "K", "odd": math.nan}}
        row |= {"references": ["one"], "reward_components": {"fluency": 0.5, "final_reward": 1.5}}
        two = {**row, "id": "x", "references": ["one", "two"]}
        path = write(tmp_path / "s.jsonl", row, two)
        first, *others = read_samples(path)
        assert first == Sample(
            "7", group_of("Say"), "Say", "one", 1.5, {"fluency": 0.5}, meta={"knowledge": "K", "odd": None}
        )
        assert [(one.id, one.completion, one.reward) for one in others] == [("x.0", "one", 1.5), ("x.1", "two", 1.5)]

    def test_prompt_and_completion_with_a_reward_or_a_label(self, tmp_path: Path) -> None:
        rewarded = read_samples(write(tmp_path / "r.jsonl", {"prompt": "p", "completion": " c", "reward": 3, "x": 1}))
        assert list(rewarded) == [Sample("r:1", group_of("p"), "p", " c", 3.0)]
        rows = [{"prompt": "p", "completion": " c", "label": label} for label in (True, False)]
        assert [one.reward for one in read_samples(write(tmp_path / "l.jsonl", *rows))] == [1.0, 0.0]

    def test_demonstrations_need_a_reward_to_be_named(self, tmp_path: Path) -> None:
        path = write(tmp_path / "s.jsonl", {"prompt": "p", "completion": " c"})
        with pytest.raises(UserError, match=r"s.jsonl:1: missing reward"):
            read_samples(path)
        assert read_samples(path, reading=Reading(missing_reward=1.0))[0].reward == 1.0

    def test_what_is_to_be_scored_goes_round_without_a_reward(self, tmp_path: Path) -> None:
        path = tmp_path / "s.jsonl"
        write_samples(path, [Sample("a", "g", "p", "c", math.nan)])
        assert "reward" not in path.read_text(encoding="utf-8")
        found = read_samples(path, reading=Reading(missing_reward=math.nan))
        assert math.isnan(found[0].reward) and "rewards: none yet" in summary(found)

    def test_preferences(self, tmp_path: Path) -> None:
        row = {"prompt": "p", "chosen": " y", "rejected": " n"}
        scored = {**row, "id": "k", "score_chosen": 7, "score_rejected": 2.5}
        found = read_samples(write(tmp_path / "s.jsonl", row, scored))
        assert [one.id for one in found] == ["s:1.chosen", "s:1.rejected", "k.chosen", "k.rejected"]
        assert [one.reward for one in found] == [1.0, 0.0, 7.0, 2.5]
        assert {one.group for one in found} == {group_of("p")}

    def test_conversations(self, tmp_path: Path) -> None:
        ask, yes, no = (
            {"role": role, "content": said}
            for role, said in (("user", "May I?"), ("assistant", "Yes."), ("assistant", "No."))
        )
        rows: list[dict[str, Any]] = [
            {"prompt": [ask], "chosen": [yes], "rejected": [no]},
            {"chosen": [ask, yes], "rejected": [ask, no]},
            {"prompt": "May I?", "chosen": [ask, yes], "rejected": [ask, no]},
        ]
        for row in rows:
            found = read_samples(write(tmp_path / "s.jsonl", row))
            assert [(one.prompt, one.completion) for one in found] == [
                ("\n\nHuman: May I?\n\nAssistant:", " Yes."),
                ("\n\nHuman: May I?\n\nAssistant:", " No."),
            ]
        completed = write(tmp_path / "c.jsonl", {"prompt": [ask], "completion": [yes], "reward": 1})
        assert read_samples(completed)[0].completion == " Yes."

    def test_content_in_parts_of_text_is_joined(self, tmp_path: Path) -> None:
        said = [{"type": "text", "text": text} for text in ("Yes", ", you may.", "")]
        row = {"prompt": [{"role": "user", "content": [{"type": "text", "text": "May I?"}]}], "reward": 1}
        row["completion"] = [{"role": "assistant", "content": said, "tool_calls": None}]
        (found,) = read_samples(write(tmp_path / "s.jsonl", row))
        assert (found.prompt, found.completion) == ("\n\nHuman: May I?\n\nAssistant:", " Yes, you may.")

    def test_a_folder_is_read_file_by_file(self, tmp_path: Path) -> None:
        with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
            file.write(json.dumps({"prompt": "p", "completion": "c", "reward": 1}) + "\n")
        write(tmp_path / "b.jsonl", hha())
        (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
        assert [one.id for one in read_samples(tmp_path)] == ["a:1", "b:1.0", "b:1.1"]

    def test_marks_and_line_breaks_of_other_systems(self, tmp_path: Path) -> None:
        path = tmp_path / "s.jsonl"
        row = json.dumps({"prompt": "p", "completion": "c", "reward": 1})
        path.write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\r\n\r\n" + row.encode())
        assert [one.id for one in read_samples(path)] == ["s:1", "s:3"]


class TestScoresThatDisagree:
    """Scores and columns of a preference pair contradict each other: the columns count, as in TRL."""

    ROW = {"prompt": "p", "chosen": " y", "rejected": " n", "score_chosen": 1, "score_rejected": 3}  # noqa: RUF012

    def test_the_columns_count_and_the_pairs_are_counted(self, tmp_path: Path, caplog: Any) -> None:
        agreeing = {**self.ROW, "prompt": "q", "score_chosen": 4}
        found = read_samples(write(tmp_path / "s.jsonl", self.ROW, agreeing, {**self.ROW, "prompt": "r"}))
        assert [(one.completion, one.reward) for one in found] == [
            (" y", 3.0), (" n", 1.0), (" y", 4.0), (" n", 3.0), (" y", 3.0), (" n", 1.0)
        ]  # fmt: skip
        assert [one.components for one in found][:4] == [{"score": 1.0}, {"score": 3.0}, {}, {}]
        (said,) = caplog.messages
        assert "2 rows: score_chosen is below score_rejected; the columns count" in said
        assert said.endswith(f"(first: {tmp_path / 's.jsonl'}:1, {tmp_path / 's.jsonl'}:3)")

    def test_other_pairs_of_the_prompt_stay_on_the_same_scale(self, tmp_path: Path) -> None:
        other = {**self.ROW, "rejected": " m", "score_chosen": 3, "score_rejected": 2.5}
        samples = read_samples(write(tmp_path / "s.jsonl", self.ROW, other))
        assert [(row["chosen"], row["rejected"]) for row in to_trl(samples, "preference")] == [
            (" y", " n"), (" y", " m")
        ]  # fmt: skip

    def test_pairs_that_agree_or_have_no_scores_are_not_talked_about(self, tmp_path: Path, caplog: Any) -> None:
        plain = {key: self.ROW[key] for key in ("prompt", "chosen", "rejected")}
        read_samples(write(tmp_path / "s.jsonl", plain, {**self.ROW, "score_chosen": 3}))
        assert not caplog.messages


class TestLists:
    """A file that is one JSON list is read element by element."""

    @pytest.mark.parametrize("indent", [None, 2])
    @pytest.mark.parametrize("packed", [False, True])
    def test_it_is_read_as_lines_are(self, tmp_path: Path, indent: int | None, packed: bool) -> None:
        rows = [{"prompt": f"p{i}", "completion": " c", "reward": i} for i in range(3)]
        path = tmp_path / ("s.json.gz" if packed else "s.json")
        text = ("\ufeff" + json.dumps(rows, indent=indent) + "\n\n").encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        found = read_samples(path)
        assert [(one.id, one.prompt, one.reward) for one in found] == [
            ("s:1", "p0", 0), ("s:2", "p1", 1), ("s:3", "p2", 2)
        ]  # fmt: skip

    def test_lists_of_every_form(self, tmp_path: Path) -> None:
        turn = Choice("policy", "left", choice=0)
        step = Step(Observation("", "Here.", ("left", "right")), (turn,), 0, 1.0)
        episode = json.loads(episode_line(Episode(Task("t", "e"), (step,), True, False, 0)))
        for row in (hha(), {"prompt": "p", "chosen": " y", "rejected": " n"}, episode):
            lines, path = read_samples(write(tmp_path / "s.jsonl", row)), tmp_path / "s.json"
            path.write_text(json.dumps([row]), encoding="utf-8")
            assert list(read_samples(path)) == list(lines)

    def test_an_element_larger_than_what_is_read_at_a_time(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr("reflectrl.wings.text.samples.rows.CHUNK", 7)
        path = tmp_path / "s.json"
        path.write_text(
            json.dumps([{"prompt": f"p{i}", "completion": "c" * 50, "reward": i} for i in range(4)], indent=1)
        )
        assert [one.prompt for one in read_samples(path)] == ["p0", "p1", "p2", "p3"]

    def test_a_pipe_is_read_as_a_file_is(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        text = json.dumps([{"prompt": "p", "completion": "c" * 100_000, "reward": 1}])
        writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,))
        writer.start()
        assert len(read_samples(tmp_path / "pipe")) == 1
        writer.join()

    @pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz"])
    @pytest.mark.parametrize("target", ["/dev/zero", "/proc/kmsg", "pipe"])
    def test_what_has_no_end_is_refused_at_once(self, tmp_path: Path, name: str, target: str) -> None:
        (tmp_path / "folder").mkdir()
        os.mkfifo(tmp_path / "folder/pipe")
        (tmp_path / "folder" / name).symlink_to(target)
        with pytest.raises(UserError, match="not a regular file"):
            read_samples(tmp_path / "folder")

    def test_a_line_of_any_length_in_a_few_bytes_takes_no_memory(self, tmp_path: Path) -> None:
        with gzip.open(tmp_path / "s.jsonl.gz", "wb") as file:
            for _ in range(80):
                file.write(b" " * (1 << 20))
        with pytest.raises(UserError, match=r"s\.jsonl\.gz:1: the line has more than 67,108,864 bytes"):
            read_samples(tmp_path / "s.jsonl.gz")

    def test_a_packed_file_without_gz_in_its_name_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "s.jsonl").write_bytes(gzip.compress(b'{"prompt": "p", "completion": "c", "reward": 1}\n'))
        with pytest.raises(UserError, match=r"s\.jsonl: this is a gzip file; name it"):
            read_samples(tmp_path / "s.jsonl")

    @pytest.mark.parametrize(
        ("text", "fragment"),
        [
            (
                '[\n{"prompt": "p", "completion": "c", "reward": 1},\n{"prompt": "p", "reward": 1}]',
                ":3, element 2: missing",
            ),
            ('[{"prompt": "p", "completion": "c", "reward": 1}, 7]', ":1, element 2: not a JSON object: 7"),
            (
                '[{"prompt": "p", "completion": "c", "reward": 1},\n{"prompt": ',
                ":2, element 2: broken JSON begins here",
            ),
            ('[{"prompt": "p", "completion": "c", "reward": 1}', ":1, element 2: broken JSON begins here"),
            ('[{"prompt": "p", "completion": "c", "reward": 1}]\n\n[{}]', ":3: broken JSON: the list has ended"),
            ("[" * 100_000, ":1, element 1: broken JSON: too deeply nested"),
            ("[\udcff]", "broken JSON: 'utf-8' codec can't decode"),
            ("[]", "not one sample"),
        ],
    )
    def test_what_is_wrong_is_named_by_its_element(self, tmp_path: Path, text: str, fragment: str) -> None:
        path = tmp_path / "s.json"
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(UserError) as raised:
            read_samples(path)
        assert str(raised.value).startswith(str(path)) and fragment in str(raised.value)

    def test_bad_elements_are_skipped_and_named(self, tmp_path: Path) -> None:
        path = tmp_path / "s.json"
        path.write_text(json.dumps([OWN, {**OWN, "id": "b", "reward": None}, {**OWN, "id": "c"}], indent=1))
        found = read_samples(path, skip_bad=True)
        assert [one.id for one in found] == ["a", "c"]
        assert found.skipped["missing reward"].first == [f"{path}:8, element 2"]


OWN = {"id": "a", "prompt": "p", "completion": "c", "reward": 1}

BAD: dict[str, tuple[dict[str, Any], Any, str]] = {
    "a broken line": (hha(), '{"prefix": [["a"', "broken JSON: "),
    "no object": (hha(), "[1]", "not a JSON object: [1]"),
    "deep": (OWN, "[" * 100_000, "broken JSON: too deeply nested"),
    "NaN reward": (hha(), hha(reward=(0.5, math.nan)), "reward is not finite: nan"),
    "infinite reward": (OWN, {**OWN, "id": "b", "reward": -math.inf}, "reward is not finite: -inf"),
    "endless reward": (OWN, {**OWN, "id": "b", "reward": 10**400}, "reward is not finite: 1000"),
    "missing reward": (OWN, {**OWN, "id": "b", "reward": None}, "missing reward"),
    "missing rewards": (hha(), {**hha(), "reward": None}, "missing reward"),
    "a reward in words": (OWN, {**OWN, "id": "b", "reward": "1"}, "reward must be a number: not '1'"),
    "a true reward": (OWN, {**OWN, "id": "b", "reward": True}, "reward must be a number: not True"),
    "empty suffix": (hha(), hha(suffix=("Yes.", " ")), "empty suffix"),
    "no suffix": (hha(), hha(suffix=(), reward=()), "lengths differ: 0 prefix, 0 suffix, 0 reward"),
    "a reward too few": (hha(), hha(reward=(1,)), "lengths differ: 2 prefix, 2 suffix, 1 reward"),
    "prefix in one piece": (hha(), {**hha(), "prefix": ["a", "b"]}, "prefix must be a list of turns: not 'a'"),
    "no turn": (hha(), hha(["<|assistant|>"]), "empty prefix"),
    "half marked": (hha(), hha(["<|prompter|>a", "b"]), "only some of the turns name the speaker"),
    "empty completion": (OWN, {**OWN, "id": "b", "completion": "\n"}, "empty completion"),
    "empty prompt": (OWN, {**OWN, "id": "b", "prompt": ""}, "empty prompt"),
    "a number to say": (OWN, {**OWN, "id": "b", "completion": 3}, "completion must be text or messages: not 3"),
    "half a character": (OWN, '{"prompt": "\\ud800", "completion": "c", "reward": 1}', "prompt is not Unicode"),
    "duplicate id": (OWN, OWN, "duplicate id: 'a'"),
    "a label of two": (OWN, {"prompt": "p", "completion": "c", "label": 2}, "label must be true or false: not 2"),
    "bad component": (OWN, {**OWN, "id": "b", "components": {"x": None}}, "missing component x"),
    "missing column": (OWN, {"prompt": "p", "reward": 1}, "missing completion"),
    "unknown columns": ({"text": "x"}, {"text": "x"}, "unknown columns: text (known: schema, task, steps; prefix"),
    "role": (
        {"chosen": [{"role": "wizard", "content": "x"}] * 2, "rejected": [{"role": "wizard", "content": "y"}] * 2},
        OWN,
        "unknown role: 'wizard'",
    ),
    "a picture": (
        OWN,
        {**OWN, "prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        """a content part cannot be read: 'image_url'; a message has a role and a content, which is text or parts""",
    ),
    "a part in one piece": (
        OWN, {**OWN, "prompt": [{"role": "user", "content": ["x"]}]}, "a content part cannot be read: 'x'; a message"
    ),
    "a tool's call": (
        OWN,
        {**OWN, "completion": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
        "tool_calls cannot be read: a message has a role and a content",
    ),
    "a tool's answer": (OWN, {**OWN, "prompt": [{"role": "tool", "content": "x"}]}, "unknown role: 'tool' (known: "),
    "dialogues in one piece": ({"chosen": "\n\nHuman: x", "rejected": "\n\nHuman: x"}, OWN, "`reflectrl data hha`"),
}  # fmt: skip


class TestBadRows:
    @pytest.mark.parametrize("name", BAD)
    def test_the_first_is_named_by_file_and_line(self, tmp_path: Path, name: str) -> None:
        good, bad, fragment = BAD[name]
        path = write(tmp_path / "s.jsonl", good, bad)
        with pytest.raises(UserError) as raised:
            read_samples(path)
        line = 1 if name in ("unknown columns", "role", "dialogues in one piece") else 2
        assert f"{path}:{line}: " in str(raised.value) and fragment in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_skipping_counts_by_reason_and_names_the_first_places(self, tmp_path: Path) -> None:
        broken, silent, nan = '{"prefix": [', hha(suffix=("Yes.", "")), hha(reward=(1, math.nan))
        path = write(tmp_path / "s.jsonl", broken, hha(), silent, *[nan] * 7, hha(["<|prompter|>x"]), "{")
        found = read_samples(path, skip_bad=True)
        assert [one.id for one in found] == ["s:2.0", "s:2.1", "s:11.0", "s:11.1"]
        counts = {reason: (one.count, one.first) for reason, one in found.skipped.items()}
        assert counts == {
            "broken JSON": (2, [f"{path}:1", f"{path}:12"]),
            "empty suffix": (1, [f"{path}:3"]),
            "reward is not finite": (7, [f"{path}:{line}" for line in range(4, 9)]),
        }
        assert f"skipped: 1 rows, empty suffix ({path}:3)" in summary(found)

    def test_a_bad_row_gives_none_of_its_samples(self, tmp_path: Path) -> None:
        path = write(tmp_path / "s.jsonl", hha(), {**hha(), "suffix": ["fine", ""]})
        assert len(read_samples(path, skip_bad=True)) == 2

    def test_nothing_left_is_a_mistake_also_when_skipping(self, tmp_path: Path) -> None:
        path = write(tmp_path / "s.jsonl", "{")
        with pytest.raises(UserError, match=r"not one sample; left out: broken JSON \(1, first at .*:1\)"):
            read_samples(path, skip_bad=True)
        with pytest.raises(UserError, match="not one sample$"):
            read_samples(write(tmp_path / "t.jsonl"))

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        for name, content, fragment in (
            ("s.jsonl.gz", b"no gzip", "gzip"),
            ("t.jsonl.gz", gzip.compress(b"{}")[:-4], ""),
        ):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(UserError, match=f"{name}: .*{fragment}"):
                read_samples(tmp_path / name, skip_bad=True)
        with pytest.raises(UserError, match="nowhere: No such file"):
            read_samples(tmp_path / "nowhere")
        (tmp_path / "empty").mkdir()
        with pytest.raises(UserError, match=r"empty: no .jsonl file"):
            read_samples(tmp_path / "empty")

    @settings(max_examples=60)
    @given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_no_line_raises_anything_else(self, tmp_path_factory: Any, line: bytes) -> None:
        path: Path = tmp_path_factory.mktemp("s") / "s.jsonl"
        path.write_bytes(json.dumps(OWN).encode() + b"\n" + line)
        try:
            assert len(read_samples(path)) >= 1
        except UserError as error:
            assert str(error).startswith(str(path))


COLUMNS = ("prefix", "suffix", "reward", "prompt", "completion", "chosen", "rejected", "label", "id", "group", "meta")
COLUMNS += ("prompt_or_input_text", "references", "reward_components", "final_reward", "components", "role", "content")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["user", "assistant", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(COLUMNS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(COLUMNS), anything, max_size=8))
def test_no_row_raises_anything_but_bad_row(row: dict[str, Any]) -> None:
    try:
        samples = list(form_of(row).read(row, "x", Reading()))
    except BadRowError as error:
        assert str(error)
    else:
        assert all(math.isfinite(sample.reward) and to_line(sample) for sample in samples)


class TestScale:
    def test_rewards_are_mapped_and_the_map_is_stored(self) -> None:
        before = Samples(tuple(Sample(str(r), "g", "p", "c", r) for r in (-2.0, 0.0, 6.0)))
        after = to_unit(before)
        assert [one.reward for one in after] == [0.0, 0.25, 1.0]
        assert [one.meta for one in after] == [{"bounds": [-2.0, 6.0]}] * 3
        with pytest.raises(UserError, match="mapped to \\[0, 1\\] before"):
            to_unit(after)

    @pytest.mark.parametrize(("logit", "reward"), [(0.0, 0.5), (800.0, 1.0), (-800.0, 0.0), (math.log(3), 0.75)])
    def test_the_sigmoid_of_any_number(self, logit: float, reward: float) -> None:
        after = through_sigmoid(Sample("a", "g", "p", "c", logit, {"x": 1.0}))
        assert after.reward == pytest.approx(reward) and after.components == {"x": 1.0, "logit": logit}

    def test_other_bounds_do_not_cut(self) -> None:
        one = to_unit(Samples((Sample("a", "g", "p", "c", 3.0),)), (0.0, 2.0))[0]
        assert (one.reward, one.meta) == (1.5, {"bounds": [0.0, 2.0]})

    @pytest.mark.parametrize("bounds", [None, (1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
    def test_bounds_must_be_an_interval(self, bounds: tuple[float, float] | None) -> None:
        with pytest.raises(UserError, match="cannot be mapped"):
            to_unit(Samples((Sample("a", "g", "p", "c", 3.0),)), bounds)

"""The four families from raw files to samples: real files in every form that users download."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.config.folders import data_folder
from reflectrl.core.types import UserError
from reflectrl.wings.text.samples import Gate, Reading, Sample, dialogue, read_samples
from reflectrl.wings.text.samples.families import FAMILIES, Account, comet, prepare, read_account
from reflectrl.wings.text.samples.families.sources import Source, find, records, split_of
from reflectrl.wings.text.samples.rows import BadRowError
from reflectrl.wings.text.samples.writing import to_line

FIXTURES = Path(__file__).parent / "fixtures"


def made(family: str, store: Path, *paths: Path, **options: Any) -> tuple[Account, dict[str, list[Sample]]]:
    """The account of a preparation, and the samples of each file."""
    skip_bad = options.pop("skip_bad", False)
    account = prepare(FAMILIES[family], paths or [FIXTURES / family], store, Gate(skip_bad), **options)
    to_be_scored = Reading(missing_reward=math.nan)
    return account, {name: list(read_samples(store / name, reading=to_be_scored)) for name in account.files}


def text_of(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


class TestHHA:
    def test_pairs_of_dialogues(self, tmp_path: Path) -> None:
        account, files = made("hha", tmp_path / "s", held_out=0.0)
        assert {name: counts["samples"] for name, counts in account.files.items()} == {
            "test.jsonl": 2,
            "train.jsonl": 10,
        }
        chosen, rejected = files["train.jsonl"][:2]
        assert (chosen.reward, rejected.reward, chosen.group) == (1.0, 0.0, rejected.group)
        assert chosen.prompt == "\n\nHuman: How do I keep basil alive indoors?\n\nAssistant:"
        assert (rejected.completion, rejected.id) == (" Basil is a herb.", "hha/helpful-base/train:1.rejected")
        longer = files["train.jsonl"][-2]
        assert [role for role, _ in dialogue.split(longer.prompt)] == ["Human", "Assistant", "Human", "Assistant"]
        assert [counted["count"] for counted in account.left_out.values()] == [1]

    def test_dialogues_that_begin_alike_stay_in_one_split(self, tmp_path: Path) -> None:
        said = [f"\n\nHuman: question {i}\n\nAssistant: " for i in range(60)]
        rows = [{"chosen": one + "yes", "rejected": one + "no"} for one in said]
        rows += [{"chosen": f"{one}yes{said[0]}yes", "rejected": f"{one}yes{said[0]}no"} for one in said]
        text_of(tmp_path / "hh" / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        account, files = made("hha", tmp_path / "s", tmp_path / "hh", held_out=0.2)
        firsts = {name: {dialogue.split(one.prompt)[0][1] for one in found} for name, found in files.items()}
        assert set(firsts) == {"train.jsonl", "validation.jsonl", "test.jsonl"}
        assert sum(map(len, firsts.values())) == 60
        assert 5 < len(firsts["validation.jsonl"]) < 22 and 5 < len(firsts["test.jsonl"]) < 22
        assert all(counts["in_train"] == 0 for counts in account.files.values())
        again = made("hha", tmp_path / "t", tmp_path / "hh", held_out=0.2)[1]
        assert again == files

    def test_rows_with_rewards(self, tmp_path: Path) -> None:
        account, files = made("hha", tmp_path / "s", FIXTURES / "hha_rows")
        assert {name: len(found) for name, found in files.items()} == {
            "train.jsonl": 6,
            "validation.jsonl": 2,
            "test.jsonl": 2,
        }
        assert [one.reward for one in files["test.jsonl"]] == [0.1, 0.7]
        assert account.ties == 1

    def test_numbers_of_a_reward_model_go_through_the_sigmoid(self, tmp_path: Path) -> None:
        plain = made("hha", tmp_path / "s", FIXTURES / "hha_rows")[1]["test.jsonl"]
        account, files = made("hha", tmp_path / "s", FIXTURES / "hha_rows", sigmoid=True)
        for before, after in zip(plain, files["test.jsonl"], strict=True):
            assert after.reward == pytest.approx(1 / (1 + math.exp(-before.reward)), rel=1e-12)
            assert after.components == {"logit": before.reward}
        assert account.rewards == [pytest.approx(0.5125, abs=1e-4), pytest.approx(0.7109, abs=1e-4)]

    @pytest.mark.parametrize("form", ["pairs", "rows"])
    def test_training_records_with_an_answer_that_ends_in_a_colon_are_left_out(self, tmp_path: Path, form: str) -> None:
        answers = [("Yes.", "No."), ("Here are three: ", "No."), ("Yes.", "These:"), ("So: yes", "No")]
        said = "\n\nHuman: Hi.\n\nAssistant:"
        pairs = [{"chosen": f"{said} {good}", "rejected": f"{said} {bad}"} for good, bad in answers]
        turns = [["<|prompter|>Hi.", "<|assistant|>"]] * 2
        rows = [{"prefix": turns, "suffix": both, "reward": [0.9, 0.1], "sft_index": 0, "meta": {}} for both in answers]
        for split in ("train", "test"):
            lines = "".join(json.dumps(row) + "\n" for row in (pairs if form == "pairs" else rows))
            text_of(tmp_path / "hh" / f"{split}.jsonl", lines)
        account, files = made("hha", tmp_path / "s", tmp_path / "hh", held_out=0.0)
        assert [one.completion.strip() for one in files["train.jsonl"]] == ["Yes.", "No.", "So: yes", "No"]
        assert len(files["test.jsonl"]) == 8, "what is judged stays whole"
        assert [(reason, counted["count"]) for reason, counted in account.left_out.items()] == [
            ("training records with an answer that ends in a colon", 2)
        ]

    def test_prompts_of_the_published_adapters(self, tmp_path: Path) -> None:
        _, files = made("hha", tmp_path / "s", FIXTURES / "hha_rows", style="guanaco")
        row = json.loads((FIXTURES / "hha_rows" / "train.json").read_text().splitlines()[0])
        text = "".join(row["prefix"][0]).replace("<|prompter|>", " ### Human: ")
        text = text.replace("<|assistant|>", " ### Assistant: ").strip()
        assert files["train.jsonl"][0].prompt == dialogue.PREAMBLE + text
        assert files["train.jsonl"][0].completion == f" {row['suffix'][0]}"

    def test_the_folder_that_the_released_code_cleaned_is_read_once(self, tmp_path: Path) -> None:
        turns = [["<|prompter|>Hi.", "<|assistant|>"]] * 2
        rows = [
            {"prefix": turns, "suffix": [f"Yes {i}.", f"No {i}."], "reward": [0.9, 0.1], "sft_index": 0, "meta": {}}
            for i in range(3)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        for name in ("hh_train_len2/train.json", "hh_train_len2/cleaner_train.json", "hh_test/harmless_base.json"):
            text_of(tmp_path / "data" / name, lines)
        text_of(tmp_path / "data" / "hh_test" / "bad_test_indices.json", '{"harmless_base.json": [1]}')
        text_of(tmp_path / "data" / "hh_test" / "bad_test_indices.jsonl", '{"bad_index": 1}\n')
        account, files = made("hha", tmp_path / "s", tmp_path / "data", held_out=0.0)
        assert {name: len(found) for name, found in files.items()} == {"train.jsonl": 6, "test.jsonl": 6}
        assert [bool(one.meta.get("unjudged")) for one in files["test.jsonl"]] == [False] * 2 + [True] * 2 + [False] * 2
        assert account.set_aside["data/hh_train_len2/train"] == "cleaner_train replaces it"
        assert account.unread == []

    def test_a_broken_list_of_records_is_named(self, tmp_path: Path) -> None:
        row = {"chosen": "\n\nHuman: Hi.\n\nAssistant: a", "rejected": "\n\nHuman: Hi.\n\nAssistant: b"}
        text_of(tmp_path / "test" / "rows.jsonl", json.dumps(row))
        text_of(tmp_path / "test" / "bad_test_indices.json", "[1]")
        with pytest.raises(UserError, match=r"bad_test_indices.json must map names of files to lists"):
            made("hha", tmp_path / "s", tmp_path / "test")

    def test_known_defects_of_the_published_data_are_left_out_and_counted(self, tmp_path: Path) -> None:
        said = "\n\nHuman: Hi.\n\nAssistant:"
        good = {"chosen": f"{said} a", "rejected": f"{said} b"}
        ranked = {"prefix": [["Hi."], ["Hi."]], "suffix": ["a", " "], "reward": [0.1, 0.2]}
        rows = [{**good, "rejected": said}, good, {**good, "chosen": f"{said} a\n\nHuman: Bye."}, ranked]
        path = text_of(tmp_path / "train.jsonl", "\n".join(map(json.dumps, rows)))
        account, files = made("hha", tmp_path / "s", path, held_out=0.0)
        assert len(files["train.jsonl"]) == 2 and not account.skipped
        assert account.left_out == {
            "empty answer in rejected": {"count": 1, "first": [f"{path}:1"]},
            "chosen must be a dialogue that ends with the assistant": {"count": 1, "first": [f"{path}:3"]},
            "empty suffix": {"count": 1, "first": [f"{path}:4"]},
        }

    @pytest.mark.parametrize(
        ("family", "name", "good", "empty"),
        [
            ("comet", "train.tsv", "X eats\txWant\tto rest", "X eats\txWant\t "),
            (
                "comet",
                "train.jsonl",
                '{"head": "X eats", "relation": "xWant", "tail": "to rest", "split": "train", "p_valid_model": 1}',
                '{"head": "X eats", "relation": "xWant", "tail": "", "split": "train", "p_valid_model": 1}',
            ),
            (
                "knowledge",
                "train.json",
                '[{"utterances": [{"history": ["Hi."], "knowledge": "k", "response": "r"}]},',
                '{"utterances": [{"history": [""], "knowledge": "k", "response": "r"}]}]',
            ),
        ],
    )
    def test_an_empty_text_is_left_out_in_every_family(
        self, tmp_path: Path, family: str, name: str, good: str, empty: str
    ) -> None:
        path = text_of(tmp_path / name, f"{good}\n{empty}\n")
        account, files = made(family, tmp_path / "s", path, held_out=0.0)
        assert [len(samples) for samples in files.values()] in ([1], [1, 1])
        assert [row["count"] for row in account.left_out.values()] == [1] and not account.skipped

    @pytest.mark.parametrize("text", ["Hi.", "\n\nHuman: Hi.", "\n\nAssistant: Hello."])
    def test_what_is_no_dialogue_is_a_bad_row(self, tmp_path: Path, text: str) -> None:
        path = text_of(tmp_path / "train.jsonl", json.dumps({"chosen": text, "rejected": text}))
        with pytest.raises(UserError, match="chosen must be a dialogue that ends with the assistant"):
            made("hha", tmp_path / "s", path)


class TestComet:
    def test_scored_inferences(self, tmp_path: Path) -> None:
        _, files = made("comet", tmp_path / "s", FIXTURES / "comet10x")
        assert {name: len(found) for name, found in files.items()} == {
            "train.jsonl": 4,
            "validation.jsonl": 1,
            "test.jsonl": 1,
        }
        first = files["train.jsonl"][0]
        assert first.prompt == "PersonX waters the garden. Next, PersonX would like"
        assert (first.completion, first.reward, first.components) == (" to rest in the shade", 0.93, {"valid": 0.93})
        assert first.meta == {"head": "PersonX waters the garden", "relation": "xWant"}

    def test_inferences_of_people_are_to_be_scored(self, tmp_path: Path) -> None:
        _, files = made("comet", tmp_path / "s", FIXTURES / "comet2020", style="atomic2020")
        assert [one.prompt for one in files["train.jsonl"]][-1] == "ladder ObjectUse [GEN]"
        assert all(math.isnan(one.reward) for found in files.values() for one in found)

    def test_a_head_in_brackets_is_no_json(self, tmp_path: Path) -> None:
        path = text_of(tmp_path / "train.tsv", "[PersonX] eats\txWant\tto rest\n")
        _, files = made("comet", tmp_path / "s", path, held_out=0.0)
        assert files["train.jsonl"][0].meta["head"] == "[PersonX] eats"

    def test_a_score_behind_the_tail(self, tmp_path: Path) -> None:
        content = "head\trelation\ttail\tscore\nPersonX eats\txWant\tto rest\t0.25\n"
        _, files = made("comet", tmp_path / "s", text_of(tmp_path / "train.tsv", content), held_out=0.0)
        assert [(one.completion, one.reward) for one in files["train.jsonl"]] == [(" to rest", 0.25)]

    def test_relations_that_comet_distill_does_not_know_are_left_out(self, tmp_path: Path) -> None:
        path = text_of(tmp_path / "train.tsv", "PersonX eats\txWant\tto rest\nladder\tObjectUse\tclimb\n")
        account, files = made("comet", tmp_path / "s", path, style="distill", held_out=0.0)
        assert [one.meta["relation"] for one in files["train.jsonl"]] == ["xWant"]
        assert account.left_out == {"relations that COMET-distill does not know": {"count": 1, "first": [f"{path}:2"]}}

    def test_prompts_of_the_trained_models(self) -> None:
        assert comet.prompt_of("X eats", "xWant", "distill") == (
            "<head> X eats </head> <relation> xWant </relation> [GEN]"
        )
        assert comet.prompt_of("X eats", "xWant", "atomic2020") == "X eats xWant [GEN]"

    def test_every_relation_has_words_of_its_own(self) -> None:
        prompts = {comet.prompt_of("PersonX eats.", relation) for relation in comet.RELATIONS}
        assert len(prompts) == len(comet.RELATIONS) == 24
        assert all("PersonX eats" in prompt and ".." not in prompt for prompt in prompts)

    @pytest.mark.parametrize(
        ("line", "fragment"),
        [
            ("X eats\txWnat\tto rest", "unknown relation: 'xWnat' (did you mean 'xWant'?)"),
            ("X eats\txWant", "not 3 or 4 fields between tabs: 2"),
            ("X eats\txWant\tto rest\tgood", "score must be a number: not 'good'"),
            ("X eats\txWant\tto rest\tnan", "score is not finite"),
        ],
    )
    def test_bad_rows(self, tmp_path: Path, line: str, fragment: str) -> None:
        path = text_of(tmp_path / "train.tsv", f"X eats\txNeed\tto cook\n{line}\n")
        with pytest.raises(UserError) as raised:
            made("comet", tmp_path / "s", path)
        assert str(raised.value).startswith(f"{path}:2: ") and fragment in str(raised.value)
        account, _ = made("comet", tmp_path / "s", path, skip_bad=True, held_out=0.0)
        assert [counted["first"] for counted in account.skipped.values()] == [[f"{path}:2"]]

    @pytest.mark.parametrize(
        ("change", "fragment"),
        [
            ({"relation": "xFeel"}, "unknown relation: 'xFeel'"),
            ({"p_valid_model": None}, "missing p_valid_model"),
            ({"split": "all"}, "unknown split: 'all'"),
        ],
    )
    def test_bad_rows_with_scores(self, tmp_path: Path, change: dict[str, Any], fragment: str) -> None:
        row = {"head": "X eats", "relation": "xWant", "tail": "to rest", "split": "train", "p_valid_model": 0.5}
        path = text_of(tmp_path / "ATOMIC10X.jsonl", json.dumps({**row, **change}))
        with pytest.raises(UserError, match=f"ATOMIC10X.jsonl:1: {fragment}"):
            made("comet", tmp_path / "s", path)


class TestReddit:
    def test_two_sets_of_replies(self, tmp_path: Path) -> None:
        account, files = made("reddit", tmp_path / "s", held_out=0.0)
        assert {name: len(found) for name, found in files.items()} == {
            "negative/train.jsonl": 3,
            "positive/train.jsonl": 3,
        }
        first = files["positive/train.jsonl"][0]
        assert first.prompt == "\n\nHuman: Finally a dry weekend in Leeds.\n\nAssistant:"
        assert first.meta == {"votes": "positive", "score": 812.0, "subreddit": "casual"} and math.isnan(first.reward)
        assert files["negative/train.jsonl"][1].completion == " Nothing, cooking is\nfor people without money."
        assert sorted(account.left_out) == [
            "no parent_text: deleted, removed or empty",
            "no text: deleted, removed or empty",
        ]

    def test_as_dialogpt_reads_it(self, tmp_path: Path) -> None:
        _, files = made("reddit", tmp_path / "s", style="dialogpt", held_out=0.0)
        first = files["positive/train.jsonl"][0]
        assert (first.prompt, first.completion) == (
            "Finally a dry weekend in Leeds.<|endoftext|>",
            "Quick, everyone act natural.",
        )

    def test_a_comment_is_in_one_split_of_both_sets(self, tmp_path: Path) -> None:
        rows = "".join(f"comment {i},reply\n" for i in range(80))
        for name in ("positive", "negative"):
            text_of(tmp_path / "r" / f"{name}.csv", f"parent_text,text\n{rows}")
        _, files = made("reddit", tmp_path / "s", tmp_path / "r", held_out=0.2)
        prompts = {name: {one.prompt for one in found} for name, found in files.items()}
        for split in ("train", "validation", "test"):
            assert prompts[f"positive/{split}.jsonl"] == prompts[f"negative/{split}.jsonl"]
        assert not prompts["positive/train.jsonl"] & prompts["positive/test.jsonl"]

    @pytest.mark.parametrize(
        ("content", "line", "fragment"),
        [
            ("body,text\na,b\n", 2, "unknown columns: body, text (needed: parent_text, text)"),
            ("parent_text,text\na,b\na\n", 3, "not as many fields as columns"),
            ("parent_text,text\na,b\na,b,c\n", 3, "not as many fields as columns"),
            ('parent_text,text\na,"b" c\n', 2, "broken CSV"),
            ("parent_text,text,score\na,b,many\n", 2, "score must be a number: not 'many'"),
        ],
    )
    def test_bad_rows(self, tmp_path: Path, content: str, line: int, fragment: str) -> None:
        path = text_of(tmp_path / "positive.csv", content)
        with pytest.raises(UserError) as raised:
            made("reddit", tmp_path / "s", path)
        assert str(raised.value).startswith(f"{path}:{line}: ") and fragment in str(raised.value)

    def test_bytes_that_are_no_text_are_a_bad_row(self, tmp_path: Path) -> None:
        path = tmp_path / "positive.csv"
        path.write_bytes(b"parent_text,text\na,b\xff\n")
        with pytest.raises(UserError, match=r"positive.csv:2: text is not Unicode"):
            made("reddit", tmp_path / "s", path)


class TestKnowledge:
    def test_both_sources_and_each_for_itself(self, tmp_path: Path) -> None:
        account, files = made("knowledge", tmp_path / "s")
        assert {name: len(found) for name, found in files.items()} == {
            **{f"wow/{name}.jsonl": count for name, count in (("train", 2), ("validation", 1), ("test", 1))},
            **{f"faithdial/{name}.jsonl": count for name, count in (("train", 4), ("validation", 2), ("test", 2))},
            **{f"both/{name}.jsonl": count for name, count in (("train", 6), ("validation", 3), ("test", 3))},
        }
        assert account.unread == ["knowledge/wow/data"]
        assert {reason: counted["count"] for reason, counted in account.left_out.items()} == {
            "answers without knowledge": 3,
            "answers before anybody has spoken": 1,
        }

    def test_what_a_wizard_knows_and_says(self, tmp_path: Path) -> None:
        _, files = made("knowledge", tmp_path / "s", FIXTURES / "knowledge" / "wow")
        tea, canals = files["wow/train.jsonl"]
        known = "Green tea is made from leaves that have not been withered."
        assert tea.prompt == f"Knowledge: {known}\n\nHuman: I drink tea every morning.\n\nAssistant:"
        assert tea.completion == " Do you drink green tea? Its leaves are not withered."
        assert tea.meta == {"knowledge": known} and math.isnan(tea.reward)
        assert [role for role, _ in dialogue.split(canals.prompt)] == ["Assistant", "Human", "Assistant"]

    def test_faithful_answers_turn_by_turn(self, tmp_path: Path) -> None:
        nested = made("knowledge", tmp_path / "s", FIXTURES / "knowledge" / "faithdial")[1]["faithdial/test.jsonl"]
        dialogues = json.loads((FIXTURES / "knowledge/faithdial/test.json").read_text(encoding="utf-8"))
        flat = [turn for one in dialogues for turn in one["utterances"]]
        path = text_of(tmp_path / "flat" / "test.jsonl", "".join(json.dumps(turn) + "\n" for turn in flat))
        found = made("knowledge", tmp_path / "t", path.parent)[1]["faithdial/test.jsonl"]
        assert [(one.prompt, one.completion, one.meta) for one in found] == [
            (one.prompt, one.completion, one.meta) for one in nested
        ]

    @pytest.mark.parametrize(
        ("record", "fragment"),
        [
            ({"dialog": [3]}, "a turn must be an object: not 3"),
            ({"dialog": "x"}, "dialog must be a list"),
            ({"utterances": [{"history": ["a"], "knowledge": "k"}]}, "missing response"),
            ({"text": "x"}, "unknown columns: text (known: dialog; utterances;"),
            (7, "not a JSON object: 7"),
        ],
    )
    def test_bad_dialogues_are_named_by_their_number(self, tmp_path: Path, record: Any, fragment: str) -> None:
        path = text_of(tmp_path / "train.json", json.dumps([{"dialog": []}, record]))
        with pytest.raises(UserError) as raised:
            made("knowledge", tmp_path / "s", path)
        assert str(raised.value).startswith(f"{path}:1, element 2: ") and fragment in str(raised.value)


KEYS = ("prefix", "suffix", "reward", "chosen", "rejected", "head", "relation", "tail", "split", "p_valid_model")
KEYS += (
    "dialog",
    "utterances",
    "history",
    "knowledge",
    "response",
    "speaker",
    "text",
    "parent_text",
    "checked_sentence",
)
SAID = ("\n\nHuman: Hi?\n\nAssistant: Yes.", "Human:", "<|assistant|>", "xWant", "train", "0_Wizard", "", "\ud800")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(SAID) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), anything, max_size=8) | anything, st.sampled_from(sorted(FAMILIES)))
def test_no_record_raises_anything_but_bad_row(record: Any, name: str) -> None:
    if name == "reddit":
        record = {key: str(value) for key, value in record.items()} if isinstance(record, dict) else {}
    source = Source(Path("wow/positive.jsonl"), "wow/positive", "train")
    try:
        for entry in FAMILIES[name].read(record, "x", source, FAMILIES[name].styles[-1]):
            assert isinstance(entry, BadRowError) or all(map(to_line, entry.samples))
    except BadRowError as error:
        assert str(error)


class TestSources:
    @pytest.mark.parametrize(
        ("name", "split"),
        [
            ("hh/helpful-base/train", "train"),
            ("hh_train_len2/part", "train"),
            ("hh_dev/sampled_dev", "validation"),
            ("wow/valid_topic_split", "validation"),
            ("test/train", "train"),
            ("hh_test/harmless_base", "test"),
            ("latest/trainer", ""),
        ],
    )
    def test_names_tell_the_split(self, name: str, split: str) -> None:
        assert split_of(name) == split

    def test_folders_above_the_given_one_tell_nothing(self, tmp_path: Path) -> None:
        text_of(tmp_path / "test" / "data" / "a.jsonl", "{}")
        assert [(one.name, one.split) for one in find([tmp_path / "test" / "data"], (".jsonl",))] == [("data/a", "")]
        assert find([tmp_path / "test" / "data" / "a.jsonl"], (".jsonl",))[0].split == "train"

    def test_missing_files_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="nowhere: no such file or folder"):
            find([tmp_path / "nowhere"], (".jsonl",))
        with pytest.raises(UserError, match=r"no .tsv or .jsonl file, gzipped or not"):
            find([tmp_path], (".tsv", ".jsonl"))

    @given(
        st.lists(st.dictionaries(st.text(), st.text() | st.integers(), max_size=3), max_size=6),
        st.sampled_from([None, 1]),
        st.integers(1, 9),
    )
    def test_lists_are_read_piece_by_piece(self, tmp_path_factory: Any, rows: Any, indent: Any, chunk: int) -> None:
        path = tmp_path_factory.mktemp("l") / "l.json"
        path.write_text("\n " + json.dumps(rows, indent=indent) + " \n", encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("reflectrl.wings.text.samples.rows.CHUNK", chunk)
            found = list(records(Source(path, "l", "train")))
        assert [value for _, value in found] == rows

    def test_elements_know_their_lines(self, tmp_path: Path) -> None:
        path = text_of(tmp_path / "l.json", '[\n{"a": 1},\n\n{"a":\n2}, {"a": 3}]')
        assert [place for place, _ in records(Source(path, "l", ""))] == [
            f"{path}:2, element 1",
            f"{path}:4, element 2",
            f"{path}:5, element 3",
        ]

    @pytest.mark.parametrize("content", ['[{"a": 1},\n{"a": }]', '[{"a": 1},\n{"a"', '[{"a": 1},\n'])
    def test_a_broken_list_is_refused_where_it_breaks(self, tmp_path: Path, content: str) -> None:
        path = text_of(tmp_path / "train.json", content)
        with pytest.raises(UserError, match=r"train.json:2, element 2: broken JSON begins here"):
            made("knowledge", tmp_path / "s", path, skip_bad=True)

    def test_packed_files(self, tmp_path: Path) -> None:
        (tmp_path / "hh").mkdir()
        for split in ("train", "test"):
            content = (FIXTURES / "hha/helpful-base" / f"{split}.jsonl").read_bytes()
            (tmp_path / "hh" / f"{split}.jsonl.gz").write_bytes(gzip.compress(content))
        packed = made("hha", tmp_path / "s", tmp_path / "hh", held_out=0.3)[0]
        plain = made("hha", tmp_path / "t", held_out=0.3)[0]
        assert packed.files == plain.files


class TestStore:
    def test_a_new_preparation_replaces_the_old_one(self, tmp_path: Path) -> None:
        made("knowledge", tmp_path, FIXTURES / "knowledge")
        (tmp_path / "notes.txt").touch()
        made("knowledge", tmp_path, FIXTURES / "knowledge" / "wow")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "data.json", "notes.txt", "wow"]

    def test_an_account_cannot_have_files_elsewhere_removed(self, tmp_path: Path) -> None:
        mine = text_of(tmp_path / "mine.jsonl", "{}")
        account = json.dumps({"family": "hha", "files": {"../mine.jsonl": {}, str(mine): {}, "old.jsonl": {}}})
        text_of(tmp_path / "s" / "data.json", account)
        old = text_of(tmp_path / "s" / "old.jsonl", "{}")
        made("hha", tmp_path / "s")
        assert mine.exists() and not old.exists()

    def test_a_store_among_the_raw_files_is_not_read(self, tmp_path: Path) -> None:
        raw = text_of(tmp_path / "train.tsv", "X\txWant\ty\n").parent
        first = made("comet", raw / "store", raw, held_out=0.0)[0]
        text_of(raw / "store" / "dev.tsv", "no row\n")
        assert made("comet", raw / "store", raw, held_out=0.0)[0] == first

    def test_what_it_holds_is_remembered(self, tmp_path: Path) -> None:
        account, _ = made("hha", tmp_path / "s", held_out=0.3)
        assert read_account(tmp_path / "s", "hha") == account
        assert account.options == {"style": "labelled", "held_out": 0.3, "sigmoid": False}
        assert read_account(tmp_path / "t", "hha") is None

    def test_another_family_is_not_written_over(self, tmp_path: Path) -> None:
        made("hha", tmp_path)
        with pytest.raises(UserError, match="holds hha data; choose another --store for comet"):
            made("comet", tmp_path, FIXTURES / "comet10x")

    def test_a_bad_row_leaves_the_store_as_it_was(self, tmp_path: Path) -> None:
        bad = text_of(tmp_path / "train.tsv", "X\txWant\ty\nX\tbad\ty\n")
        with pytest.raises(UserError, match="unknown relation"):
            made("comet", tmp_path / "s", bad)
        assert not (tmp_path / "s").exists()
        made("comet", tmp_path / "s", FIXTURES / "comet2020")
        before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
        with pytest.raises(UserError, match="unknown relation"):
            made("comet", tmp_path / "s", bad)
        assert {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()} == before

    def test_nothing_found_says_why(self, tmp_path: Path) -> None:
        text_of(tmp_path / "r" / "a.jsonl", "{}")
        with pytest.raises(UserError, match="not one hha sample; files whose names contain no split: r/a"):
            made("hha", tmp_path / "s", tmp_path / "r")
        text_of(tmp_path / "r" / "positive.csv", "parent_text,text\n,x\n")
        with pytest.raises(UserError, match="not one reddit sample; left out: 1 no parent_text"):
            made("reddit", tmp_path / "s", tmp_path / "r")

    def test_prompts_that_training_has_as_well_are_counted(self, tmp_path: Path) -> None:
        for split in ("train", "validation", "test"):
            text_of(tmp_path / "r" / f"{split}.tsv", f"X eats\txWant\tto rest\nX {split}s\txWant\tto rest\n")
        account, _ = made("comet", tmp_path / "s", tmp_path / "r")
        assert account.files["test.jsonl"] == {"samples": 2, "prompts": 2, "in_train": 1}

    @pytest.mark.parametrize("share", [-0.1, 0.5, math.nan])
    def test_the_held_out_share_is_checked(self, tmp_path: Path, share: float) -> None:
        with pytest.raises(UserError, match="held-out share must be from 0 to below 0.5"):
            made("hha", tmp_path, held_out=share)

    def test_styles_are_checked(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="unknown style 'word' \\(did you mean 'words'"):
            made("comet", tmp_path, FIXTURES / "comet10x", style="word")

    def test_where_data_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REFLECTRL_DATA", "/data")
        assert (data_folder("hha"), data_folder("hha", "~/x")) == (Path("/data/hha"), Path.home() / "x")
        monkeypatch.delenv("REFLECTRL_DATA")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        assert data_folder("comet") == Path.home() / ".cache/reflectrl/comet"

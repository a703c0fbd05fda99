"""Scratch and foreign tokenizers: round trips, labels, what is refused."""

import json
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from reflectrl.core import prompts as prompting
from reflectrl.core.config import ModelConfig
from reflectrl.core.prompts import Prompt, encode_lines, policy_prompt, splits_at_lines, tokenize
from reflectrl.core.types import Observation, UserError
from reflectrl.models.labels import candidates, find_labels
from reflectrl.models.load import load_model
from reflectrl.models.scratch import make_model, save_scratch, train_tokenizer

MAP = "+---------+\n|D: | : :P|\n|T:O: | : |\n+---------+\nLast: west\n"
LISTING = "; ".join(f"{label}: go" for label in [*map(str, range(1, 13)), *string.ascii_letters])
TEXTS = [f"{MAP}Reflection: The taxi moved west.\nActions: {LISTING}\nChoice: {i}" for i in range(1, 13)] * 4
CONFIG = ModelConfig(layers=1, width=16, heads=2, vocab=320, context=256)


def byte_level(pattern: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE in the style of GPT-2 and Qwen: a space belongs to the word after it."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """In the style of Llama and Mistral: spaces become ▁, digits stand alone, sequences begin with a token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Digits(True)])
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    alphabet = [*string.ascii_letters, *string.digits, "▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    first = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[first])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


QWEN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MAKERS = {
    "scratch": lambda: train_tokenizer(TEXTS, 320, 12),
    "same words": lambda: train_tokenizer(TEXTS, 320, 12, same_words=True),
    "gpt2": lambda: byte_level(GPT2),
    "qwen": lambda: byte_level(QWEN),
    "llama": sentencepiece_like,
}
TOKENIZERS = {name: make() for name, make in MAKERS.items()}
named = pytest.mark.parametrize("name", TOKENIZERS)


def plain(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


# ---- the scratch tokenizer -------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_survives_the_scratch_tokenizer(text: str) -> None:
    tokenizer = TOKENIZERS["scratch"]
    assert tokenizer.decode(plain(tokenizer, text)) == text


@settings(max_examples=300, deadline=None)
@given(
    st.text(
        st.one_of(
            st.sampled_from("aBc \n\t(-.'12|"), st.characters(exclude_categories=["Cs"], exclude_characters="\x0e\x0f")
        )
    )
)
def test_any_text_survives_a_tokenizer_of_the_same_words_but_for_a_space_before_it(text: str) -> None:
    tokenizer = TOKENIZERS["same words"]
    ids = list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    assert tokenizer.decode(ids) in (text, text.removeprefix(" "))


@settings(max_examples=100, deadline=None)
@given(
    word=st.sampled_from(["door", "gorbal", "quux", "sea"]),
    before=st.sampled_from(["", " ", "\n", "go to the ", "(", "a-", "\n  ", "> "]),
    after=st.sampled_from(["", ".", ", then", ")", "\n"]),
    capital=st.booleans(),
)
def test_a_word_has_the_same_tokens_wherever_it_stands(word: str, before: str, after: str, capital: bool) -> None:
    tokenizer = TOKENIZERS["same words"]
    own = plain(tokenizer, word)
    ids = plain(tokenizer, before + (word.capitalize() if capital else word) + after)
    assert any(ids[i : i + len(own)] == own for i in range(len(ids)))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="0123456789 :;.-|+aT\n"))
def test_numbers_that_are_labels_do_not_break_text(text: str) -> None:
    tokenizer = TOKENIZERS["scratch"]
    assert tokenizer.decode(plain(tokenizer, text)) == text


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet=" :|TPDXO", min_size=9, max_size=9), min_size=1, max_size=5))
def test_rows_of_a_map_take_a_token_per_cell(cells: list[str]) -> None:
    """Cells keep their places: equal widths give equally many tokens (letters may carry the space before them)."""
    tokenizer = train_tokenizer([MAP], 257)
    for row in cells:
        assert len(plain(tokenizer, f"|{row}|\n")) == 12


def test_walls_stay_apart_and_edges_grow_together() -> None:
    tokenizer = TOKENIZERS["scratch"]
    assert tokenizer.tokenize("|:|:|") == ["|", ":", "|", ":", "|"]
    assert len(tokenizer.tokenize("+---------+")) == 3


def test_the_same_texts_give_the_same_tokenizer_and_the_same_seed_the_same_weights() -> None:
    first, second = (train_tokenizer(TEXTS, 320, 12) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    state = torch.get_rng_state()
    weights = [make_model(CONFIG, first, seed).state_dict()["transformer.wte.weight"] for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state), "making a model moves nobody else's random numbers"


@pytest.mark.parametrize("choices", [9, 10, 12, 40, 199])
def test_a_scratch_tokenizer_labels_as_many_actions_as_it_was_made_for_with_numbers(choices: int) -> None:
    labels = find_labels(train_tokenizer([MAP], 257, choices), choices)
    assert labels.texts == tuple(map(str, range(1, choices + 1)))


@pytest.mark.parametrize("choices", [1, 2, 8])
def test_even_one_without_merges_labels_a_few_actions(choices: int) -> None:
    assert len(find_labels(train_tokenizer([MAP], 257, choices), choices).texts) == choices


# ---- labels ----------------------------------------------------------------------------------------------------------


@named
@pytest.mark.parametrize("count", [1, 5, 9, 12])
def test_labels_are_distinct_single_tokens_where_the_policy_answers(name: str, count: int) -> None:
    tokenizer = TOKENIZERS[name]
    labels = find_labels(tokenizer, count)
    assert len(labels.texts) == len(set(labels.texts)) == len(set(labels.token_ids)) == count
    observation = Observation("", MAP, tuple(f"go {i}" for i in range(count)))
    for reflection in (None, "The taxi moved west. Go on."):
        rest = policy_prompt(observation, reflection, labels.texts).rest
        for text, token in zip(labels.texts, labels.token_ids, strict=True):
            assert plain(tokenizer, f"{rest} {text}") == [*plain(tokenizer, rest + labels.gap), token]


@named
def test_labels_for_few_actions_are_the_first_of_those_for_many(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    most = find_labels(tokenizer, 12)
    for count in range(1, 12):
        few = find_labels(tokenizer, count)
        assert (few.texts, few.token_ids, few.gap) == (most.texts[:count], most.token_ids[:count], most.gap)


@pytest.mark.parametrize("name", ["qwen", "llama"])
def test_where_digits_are_split_there_are_letters_beyond_nine(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert len(plain(tokenizer, " 12")) > len(plain(tokenizer, " 1"))
    assert set(find_labels(tokenizer, 12).texts) & set(string.ascii_letters)


def test_too_few_labels_are_told_in_one_line() -> None:
    with pytest.raises(UserError, match=r"has \d+ single-token choice labels, but 900 actions") as caught:
        find_labels(TOKENIZERS["scratch"], 900)
    assert "\n" not in str(caught.value)


def test_candidates_are_distinct() -> None:
    words = list(candidates())
    assert len(words) == len(set(words)) > 800


# ---- line by line ----------------------------------------------------------------------------------------------------

GROWING = st.lists(st.text(alphabet="aZ19 .,:;>-+|'\t\r\n_é\u0301界<end>", max_size=9), max_size=8)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(TOKENIZERS)), texts=GROWING)
def test_the_ids_of_a_text_are_those_of_its_lines(name: str, texts: Sequence[str]) -> None:
    tokenizer = TOKENIZERS[name]
    for count in range(len(texts) + 1):  # as a history grows
        text = "\n".join(texts[:count])
        assert encode_lines(tokenizer, text) == plain(tokenizer, text)


@pytest.mark.parametrize(("name", "splits"), [("scratch", True), ("gpt2", True), ("qwen", True), ("llama", False)])
def test_byte_level_tokenizers_encode_lines_apart_and_others_do_not(name: str, splits: bool) -> None:
    assert splits_at_lines(TOKENIZERS[name]) is splits


def test_a_token_that_takes_a_newline_along_forbids_it() -> None:
    for token, splits in (("<x>", True), ("x\n", False)):
        tokenizer = byte_level(GPT2)
        tokenizer.add_tokens([token])
        assert splits_at_lines(tokenizer) is splits
    tokenizer = byte_level(GPT2)
    tokenizer.add_tokens([AddedToken("<x>", lstrip=True)])
    assert not splits_at_lines(tokenizer)
    assert encode_lines(tokenizer, "a\n<x>b") == plain(tokenizer, "a\n<x>b")


def test_a_line_is_encoded_once_and_remembering_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, asked = byte_level(GPT2), []
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **named: asked.append(text) or encode(text, **named))
    monkeypatch.setattr(prompting, "MOST_LINES", 2)
    assert encode_lines(tokenizer, "a\nb\na\nb") == encode("a\nb\na\nb")
    assert asked == ["a\n", "b\n", "b"]
    assert encode_lines(tokenizer, "b") == encode("b") and asked == ["a\n", "b\n", "b"]
    encode_lines(tokenizer, "b\na\nb")
    assert asked == ["a\n", "b\n", "b", "b\n", "a\n", "b"], "more than the bound: forgotten"


# ---- prompts as tokens -----------------------------------------------------------------------------------------------


def saved(folder: Path, tokenizer: Any, config: ModelConfig = CONFIG) -> Path:
    make_model(config, tokenizer, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@named
def test_a_foreign_tokenizer_survives_being_saved(name: str, tmp_path: Path) -> None:
    lm = load_model(saved(tmp_path, TOKENIZERS[name]), CONFIG)
    assert lm.encode(TEXTS[0]) == plain(TOKENIZERS[name], TEXTS[0])
    assert lm.tokenizer.pad_token_id is not None


def test_a_sequence_begins_with_the_token_that_the_tokenizer_asks_for(tmp_path: Path) -> None:
    for name, begins in (("llama", True), ("gpt2", False)):
        lm = load_model(saved(tmp_path / name, TOKENIZERS[name]), CONFIG)
        ids = tokenize(lm, Prompt("", MAP))
        assert (ids[0] == lm.tokenizer.bos_token_id) is begins
        assert list(ids[begins:]) == lm.encode(MAP)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("scratch")
    save_scratch(folder, CONFIG, TEXTS, 6, 0)
    return load_model(folder, CONFIG)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2", "canon_llama"])
def test_a_context_of_0_is_chosen_from_the_texts(family: Any, tmp_path: Path) -> None:
    """There is room for what is written, and for prompts half as long again."""
    config = replace(CONFIG, context=0, family=family)
    context = save_scratch(tmp_path / family, config, TEXTS, 6, 0, written=30)
    lm = load_model(tmp_path / family, config)
    longest = max(len(lm.encode(text)) for text in TEXTS)
    assert lm.context == context and context % 64 == 0
    assert longest * 3 // 2 + 30 <= context < longest * 3 // 2 + 30 + 64
    assert load_model(tmp_path / family, replace(config, context=40)).context == 40


def test_a_pretrained_model_is_told_its_context() -> None:
    assert "set a length for a pretrained model" in str(replace(CONFIG, context=0, source="mine").problem())
    assert "set a length for a pretrained model" in str(replace(CONFIG, context=0, policy="mine").problem())
    assert replace(CONFIG, context=0).problem() is None


@settings(max_examples=60, deadline=None)
@given(past=st.lists(st.sampled_from(["a", "b", "T", "\n"]), max_size=400), reserve=st.integers(1, 200))
def test_only_the_oldest_history_is_lost(scratch: Any, past: Sequence[str], reserve: int) -> None:
    history = "".join(past)
    ids = tokenize(scratch, Prompt(history, "now: T\n"), reserve)
    rest = scratch.encode("now: T\n")
    whole = scratch.encode(history) if history else []
    assert len(ids) == min(len(whole) + len(rest), scratch.context - reserve)
    assert list(ids) == (whole + rest)[len(whole) + len(rest) - len(ids) :]


def test_what_may_not_be_cut_and_does_not_fit_is_refused(scratch: Any) -> None:
    fitting = Prompt("history", "T" * (scratch.context - 10))
    assert len(tokenize(scratch, fitting, reserve=10)) == scratch.context - 10
    with pytest.raises(UserError, match=r"246 tokens of observation and 11 to be written .* context of 256"):
        tokenize(scratch, fitting, reserve=11)


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(*arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_model(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_folder_is_refused_without_a_network(tmp_path: Path) -> None:
    assert "is neither a folder nor" in refusal(tmp_path / "nowhere", CONFIG)
    assert "is neither a folder nor" in refusal("no-such-organisation/no-such-model", CONFIG)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see", encoding="utf-8")
    assert "cannot be loaded as a Hugging Face model" in refusal(tmp_path, CONFIG)


def test_broken_weights_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, TOKENIZERS["scratch"])
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    assert "model.safetensors is not a safetensors file" in refusal(tmp_path, CONFIG)


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, TOKENIZERS["scratch"])
    PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS["scratch"].backend_tokenizer).save_pretrained(tmp_path)
    assert "no end-of-text token" in refusal(tmp_path, CONFIG)


def test_a_larger_vocabulary_than_the_embedding_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, TOKENIZERS["scratch"])
    TOKENIZERS["llama"].save_pretrained(tmp_path)
    assert "belongs to another tokenizer" in refusal(tmp_path, CONFIG)


def test_a_checkpoint_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    load_model(saved(tmp_path, TOKENIZERS["gpt2"]), CONFIG).save(tmp_path / "mine")
    other = train_tokenizer(["quite another text"], 258)
    assert len(other) <= len(TOKENIZERS["gpt2"]), "the sizes alone would not tell"
    other.save_pretrained(tmp_path / "mine")
    assert "belongs to another tokenizer" in refusal(tmp_path / "mine", CONFIG)


def test_a_broken_card_is_refused(tmp_path: Path) -> None:
    load_model(saved(tmp_path, TOKENIZERS["gpt2"]), CONFIG).save(tmp_path)
    (tmp_path / "reflectrl.json").write_text("{", encoding="utf-8")
    assert "reflectrl.json cannot be read" in refusal(tmp_path, CONFIG)


def test_an_unknown_or_absent_device_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, TOKENIZERS["scratch"])
    assert "unknown device 'gpu'" in refusal(tmp_path, ModelConfig(device="gpu"))
    if not torch.cuda.is_available():
        assert "cuda" in refusal(tmp_path, ModelConfig(device="cuda")).lower()


def test_what_is_saved_is_an_ordinary_hugging_face_folder(tmp_path: Path) -> None:
    load_model(saved(tmp_path / "a", TOKENIZERS["scratch"]), CONFIG).save(tmp_path / "b", part="policy", seed=3)
    names = {path.name for path in (tmp_path / "b").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "reflectrl.json"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)
    assert json.loads((tmp_path / "b" / "reflectrl.json").read_text())["seed"] == 3
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "b")
    assert plain(tokenizer, TEXTS[0]) == plain(TOKENIZERS["scratch"], TEXTS[0])

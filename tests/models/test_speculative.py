"""DraftModel: whatever is guessed, what is written stays the same; texts that repeat themselves take few passes."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reflectrl.core.types import Sampling
from reflectrl.models.backend import Completion
from reflectrl.models.generation import CONTEXTS, END, LONGEST_DRAFT, Draft, DraftModel, Evidence
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import sampler
from reflectrl.models.sharing import Ids, KVCache

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
both = pytest.mark.parametrize(
    ("family", "adapters"), [(family, many) for family in ("gpt2", "llama", "mistral", "qwen2") for many in (0, 1)]
)


class Oracle(DraftModel):
    """Guesses from a list of answers, some of them spoilt."""

    def __init__(self, answers: Sequence[Ids], spoil: float, seed: int) -> None:
        super().__init__()
        self.answers, self.spoil, self.rng = (
            ["".join(map(chr, answer)) for answer in answers],
            spoil,
            np.random.default_rng(seed),
        )

    def _guess(self, prompt: str, text: str) -> tuple[float, str, Evidence]:
        written = text[1:]
        for answer in self.answers:
            if answer.startswith(written) and len(answer) > len(written):
                wrong = self.rng.random() < self.spoil
                return 1.0, chr(7) if wrong else answer[len(written)], ("prompt", 2, 0)
        return 0.0, END, ("", 0, 0)


def write(lm: LanguageModel, prompts: Sequence[Ids], temperature: float, drafts: DraftModel | None) -> list[Completion]:
    generators = [np.random.default_rng([3, i]) for i in range(len(prompts))]
    caches = [KVCache() for _ in prompts]
    written = lm.backend.write(prompts, 12, sampler(Sampling(temperature)), generators, caches, drafts)
    assert [prefix.ids for prefix in caches] == list(prompts), "they hold the prompts, and nothing that is written"
    for i, (generator, (ids, _)) in enumerate(zip(generators, written, strict=True)):
        expected = np.random.default_rng([3, i])
        if temperature:
            expected.random(min(12, len(ids) + 1))
        assert generator.bit_generator.state == expected.bit_generator.state, (
            "a number for each token, none for guesses"
        )
    return written


def rounding_decides(lm: LanguageModel, prompt: Ids, written: Ids, row: int, temperature: float) -> bool:
    """Return whether the number drawn for the next token lies between two tokens, so that either may come."""
    with torch.inference_mode():
        logits_V = lm.backend.logits(lm.backend.read([prompt + written]))[0].double()
        limits_V = torch.softmax(logits_V / temperature, -1).cumsum(-1)
    drawn = np.random.default_rng([3, row]).random(len(written) + 1)[-1]
    return float((limits_V - drawn).abs().min()) < 1e-6


@both
@settings(max_examples=8, deadline=None)
@example(lengths=[27], temperature=0.7, spoil=0.0, seed=395)  # with adapters, the third draw lies between two tokens
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    spoil=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    seed=st.integers(0, 1000),
)
def test_guesses_right_and_wrong_change_nothing_but_the_number_of_passes(
    pair: Pair, family: str, adapters: int, lengths: list[int], temperature: float, spoil: float, seed: int
) -> None:
    lm, rng = pair(family, bool(adapters))[0], np.random.default_rng(seed)
    prompts = [tuple(int(token) for token in rng.integers(1, 250, size=length)) for length in lengths]
    before = lm.counters.copy()
    expected = write(lm, prompts, temperature, None)
    plain = lm.counters.since(before)
    drafts, before = Oracle([ids for ids, _ in expected], spoil, seed), lm.counters.copy()
    found = write(lm, prompts, temperature, drafts)
    drafted = lm.counters.since(before)
    for row, ((ids, logprobs), (expected_ids, expected_logprobs)) in enumerate(zip(found, expected, strict=True)):
        if ids != expected_ids:
            same = next(i for i, (one, other) in enumerate(zip(ids, expected_ids, strict=False)) if one != other)
            assert temperature and rounding_decides(lm, prompts[row], ids[:same], row, temperature)
            return
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
    assert plain.drafted == 0 and drafted.decoded - drafted.drafted <= plain.decoded
    if spoil == 0 and len(prompts) == 1 and len(expected[0][0]) > 2:
        assert drafted.passes < plain.passes, "right guesses save passes"


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.text(alphabet="abcd", max_size=20), max_size=6),
    prompt=st.text(alphabet="abcd", max_size=30),
    written=st.text(alphabet="abcd", max_size=20),
    most=st.integers(0, 30),
)
def test_a_draft_is_never_longer_than_allowed_and_never_goes_beyond_the_end(
    texts: list[str], prompt: str, written: str, most: int
) -> None:
    drafts = DraftModel()
    for text in texts:
        drafts.learn(Draft(), 0, text + END)
    draft = drafts.draft(prompt, written, most)
    assert len(draft.tokens) == len(draft.evidence) <= min(most, LONGEST_DRAFT)
    assert END not in draft.tokens
    drafts.learn(draft, min(1, len(draft.tokens)))


def rehearse(drafts: DraftModel, prompt: str, text: str) -> int:
    """How many passes a text takes to write."""
    whole, written, passes = text + END, 0, 0
    while written < len(whole):
        draft = drafts.draft(prompt, text[:written], len(text) - written)
        held = 0
        while held < len(draft.tokens) and draft.tokens[held] == text[written + held]:
            held += 1
        drafts.learn(draft, held)
        written, passes = written + held + 1, passes + 1
    drafts.learn(Draft(), 0, whole)
    return passes


def test_a_text_that_comes_again_is_guessed_and_noise_is_left_alone() -> None:
    rng, drafts = np.random.default_rng(0), DraftModel()
    phrases = [f"the taxi stands in row {i % 5} and column {i % 3}, go on to the north" for i in range(40)]
    passes = [rehearse(drafts, "", phrase) for phrase in phrases]
    assert passes[0] > 30
    assert max(passes[30:]) < 12, "about 58 tokens"
    for _ in range(30):
        rehearse(drafts, "", "".join(map(chr, rng.integers(300, 1300, size=50))))
    noise = "".join(map(chr, rng.integers(300, 1300, size=50)))
    assert sum(len(drafts.draft("", noise[:i], 50).tokens) for i in range(50)) < 10


def test_what_stands_in_the_prompt_is_guessed_without_having_been_written_before() -> None:
    drafts = DraftModel()
    for word in ("cupboard 3 of the kitchen", "drawer 12 in the bedroom", "shelf 4 beside the window"):
        rehearse(drafts, f"Task: put it in {word}.", f"I put it in {word}.")
    draft = drafts.draft("Task: put it in basket 7 under the table.", "I put it in basket 7", 20)
    assert draft.tokens.startswith(" under the table")
    assert {source for source, _, _ in draft.evidence} == {"prompt"}


def test_what_is_remembered_is_bounded() -> None:
    drafts, rng = DraftModel(limit=500), np.random.default_rng(0)
    for _ in range(50):
        drafts.learn(Draft(), 0, "".join(map(chr, rng.integers(300, 1300, size=30))))
        assert len(drafts._next) < 500 + 30 * len(CONTEXTS)

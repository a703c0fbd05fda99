"""Options scored by a learned head: in any order, beside any others, as the plain backend scores them."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.core.config import ModelConfig
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.types import Observation, Sampling, Task, UserError
from reflectrl.models.backend import Candidates
from reflectrl.models.cards import HEADS, OPTION_HEAD
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.models.sharing import Ids, KVCache, pack

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
families = pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2", "canon_llama"])


@contextmanager
def scoring_head(lm: LanguageModel) -> Iterator[LanguageModel]:
    """The same model with a head that tells options apart."""
    head = torch.nn.Parameter(torch.linspace(-1, 1, lm.hidden_size, device=lm.device))
    yield replace(lm, option_head=head)


def texts(rng: np.random.Generator, count: int, length: int) -> Candidates:
    """Options of random tokens. About half of them begin like the one before."""
    found: list[Ids] = []
    for _ in range(count):
        fresh = tuple(int(t) for t in rng.integers(1, 257, size=int(rng.integers(1, length + 1))))
        begun = found[-1][: int(rng.integers(0, length))] if found and rng.random() < 0.5 else ()
        found.append((*begun, *fresh))
    return Candidates(tuple(found), (1,) * count)


def prompts(rng: np.random.Generator) -> list[Ids]:
    start = tuple(int(t) for t in rng.integers(1, 257, size=40))
    return [(*start, *(int(t) for t in rng.integers(1, 257, size=n))) for n in (3, 9, 1)]


def seat(actions: Sequence[str], state: str = "You see the sea.\n", reflection: str = "") -> LiveEpisode:
    live = LiveEpisode(
        None,  # type: ignore[arg-type]  (players look at the observation alone)
        Task("", ""),
        0,
        np.random.default_rng(0),
        Observation("", state, tuple(actions)),
    )
    return live


@families
@pytest.mark.parametrize("adapters", [False, True])
def test_scores_and_gradients_are_those_of_a_pass_per_option(pair: Pair, family: str, adapters: bool) -> None:
    """Few and many options of several prompts in one pass, and with caches."""
    rng = np.random.default_rng(1)
    asked, listed = prompts(rng), [texts(rng, 4, 3), texts(rng, 90, 6), texts(rng, 1, 2)]
    with scoring_head(pair(family, adapters)[0]) as lm:
        slow = replace(lm, engine_options=replace(lm.engine_options, packed=False))
        results = []
        for one in (lm, slow):
            logits_PA, hidden_PD = one.backend.score(asked, listed, "options")
            rows = [row[: len(each.ids)] for row, each in zip(logits_PA, listed, strict=True)]
            assert all(row[len(each.ids) :].isneginf().all() for row, each in zip(logits_PA, listed, strict=True))
            loss = sum(-(row.log_softmax(-1)[0]) for row in rows) + hidden_PD.square().mean()
            grads = torch.autograd.grad(loss, lm.parameters(), allow_unused=True)
            results.append((torch.cat(rows).detach(), torch.cat([g.flatten() for g in grads if g is not None])))
        (fast_X, fast_grad), (slow_X, slow_grad) = results
        torch.testing.assert_close(fast_X, slow_X, atol=1e-5 * float(slow_X.abs().max()), rtol=1e-5)
        assert float(torch.cosine_similarity(fast_grad, slow_grad, dim=0)) > 1 - 1e-5
        assert float((fast_grad - slow_grad).norm() / slow_grad.norm()) < 1e-4
        caches = [KVCache() for _ in asked]
        with torch.inference_mode():
            for _ in range(2):  # the second time behind a known beginning
                found_PA, _ = lm.backend.score(asked, listed, "options", caches)
                cached_X = torch.cat([row[: len(each.ids)] for row, each in zip(found_PA, listed, strict=True)])
                torch.testing.assert_close(cached_X, slow_X, atol=1e-5 * float(slow_X.abs().max()), rtol=1e-5)
                assert [cache.ids for cache in caches] == asked


@pytest.mark.parametrize("count", [20, 255])
def test_probabilities_do_not_depend_on_the_order(pair: Pair, count: int) -> None:
    rng = np.random.default_rng(2)
    words = [" ".join(rng.choice(["go", "look", "sea", "north", "1", "2"], size=5)) for _ in range(3 * count)]
    actions = list(dict.fromkeys(words))[:count]
    with scoring_head(pair("gpt2")[0]) as lm:
        policy = Policy(lm, Sampling(0.0), memory=0, scoring="options")
        [first] = policy.turns([seat(actions)])
        expected = dict(zip(actions, first.probs, strict=True))
        assert len(expected) == count and max(first.probs) > 2 * min(first.probs)
        for _ in range(5):
            shuffled = [actions[i] for i in rng.permutation(count)]
            [turn] = policy.turns([seat(shuffled)])
            assert dict(zip(shuffled, turn.probs, strict=True)) == pytest.approx(expected, abs=1e-5)
            assert turn.text == first.text


def test_an_untrained_head_finds_all_options_equally_likely(pair: Pair) -> None:
    lm = replace(pair("llama")[0], option_head=None)
    [turn] = Policy(lm, scoring="options").turns([seat([f"go to {i}" for i in range(60)])])
    assert turn.probs == pytest.approx([1 / 60] * 60, abs=1e-6)


def test_a_score_depends_on_prompt_and_text_alone(pair: Pair) -> None:
    """Not on the other options, nor on the other prompts of the batch."""
    rng = np.random.default_rng(3)
    asked, listed = prompts(rng), [texts(rng, 70, 5), texts(rng, 6, 5), texts(rng, 80, 2)]
    with scoring_head(pair("qwen2")[0]) as lm, torch.no_grad():
        together_PA, _ = lm.backend.score(pack(asked), listed, "options")
        for prompt, each, row in zip(asked, listed, together_PA, strict=True):
            alone = [lm.backend.score([prompt], [Candidates((ids,), (1,))], "options")[0][0, 0] for ids in each.ids[:5]]
            torch.testing.assert_close(row[:5], torch.stack(alone), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("adapters", [False, True])
def test_the_head_is_saved_and_copied_with_the_model(pair: Pair, tmp_path: Path, adapters: bool) -> None:
    actions = ["go", "go north", "look at the sea"]
    with scoring_head(pair("gpt2", adapters)[0]) as lm:
        lm.heads = {"critic.weight": torch.ones(3)}
        expected = Policy(lm, scoring="options").turns([seat(actions)])[0].probs
        lm.save(tmp_path / "saved")
        twin = lm.frozen_copy("twin")
        assert lm.option_head is not None and not any(p.requires_grad for p in twin.parameters())
        with torch.no_grad():
            lm.option_head.zero_()
        assert Policy(twin, scoring="options").turns([seat(actions)])[0].probs == pytest.approx(expected, abs=1e-6)
        lm.load_weights(twin.weights())
        assert Policy(lm, scoring="options").turns([seat(actions)])[0].probs == pytest.approx(expected, abs=1e-6)
    loaded = load_model(tmp_path / "saved", ModelConfig(context=320, mixed_precision="off"), "policy")
    assert Policy(loaded, scoring="options").turns([seat(actions)])[0].probs == pytest.approx(expected, abs=1e-5)
    assert set(loaded.heads) == {"critic.weight"}
    assert any(p is loaded.option_head for p in loaded.parameters())


def test_a_head_of_another_width_is_refused(pair: Pair, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    lm = pair("gpt2")[0]
    lm.save(tmp_path / "saved")
    save_file({OPTION_HEAD: torch.zeros(5)}, tmp_path / "saved" / HEADS)
    with pytest.raises(UserError, match="width 32"):
        load_model(tmp_path / "saved", ModelConfig(context=320), "policy")


def test_a_question_comes_after_the_reflection(pair: Pair) -> None:
    lm = pair("gpt2")[0]
    policy = Policy(copy.copy(lm), scoring="options")
    seen = Observation("Day 1.\n", "You see a door.\n", ("go",))
    ids = policy.question_prompt(seen, "A door.", "Is it open?", ("yes", "no"))
    assert lm.tokenizer.decode(ids) == "Day 1.\nYou see a door.\nReflection: A door.\nQuestion: Is it open?\nAnswer:"
    ids = policy.question_prompt(seen, None, "Is it open?", ("yes", "no"))
    assert lm.tokenizer.decode(ids) == "Day 1.\nYou see a door.\nQuestion: Is it open?\nAnswer:"


def test_options_need_no_place_in_the_prompt(pair: Pair) -> None:
    """Hundreds of options fit where their list would not."""
    lm: Any = replace(pair("gpt2")[0], context=64)
    [turn] = Policy(lm, scoring="options").turns([seat([f"look at {i}" for i in range(255)])])
    assert len(turn.probs) == 255


def test_a_wide_set_is_read_in_parts_with_the_same_result(pair: Pair) -> None:
    """Parts of about so many tokens as a processor likes; sorted, so that the order changes no bit."""
    rng = np.random.default_rng(5)
    listed, order = texts(rng, 200, 8), rng.permutation(200)
    shuffled = Candidates(tuple(listed.ids[i] for i in order), (1,) * 200)
    with scoring_head(pair("llama")[0]) as lm, torch.inference_mode():
        asked = prompts(rng)[:1]
        whole = lm.backend.score(pack(asked), [listed], "options")[0]
        lm = replace(lm)  # with a backend of its own
        lm.backend.pass_tokens = 100  # type: ignore[attr-defined]
        parts = lm.backend.score(asked, [listed], "options", [KVCache()])[0]
        again = lm.backend.score(asked, [shuffled], "options", [KVCache()])[0]
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
        assert torch.equal(again, parts[:, torch.from_numpy(order)])


def test_models_that_read_add_the_probability_of_the_text(pair: Pair) -> None:
    asked, listed = prompts(np.random.default_rng(1)), [texts(np.random.default_rng(i), 5, 3) for i in range(3)]
    ended = [Candidates(tuple((*ids, 0) for ids in each.ids), each.words) for each in listed]
    with scoring_head(pair("canon_llama")[0]) as lm, torch.no_grad():
        scores_PA, _ = lm.backend.score(asked, ended, "options")
        logp_PA, _ = lm.backend.score(asked, ended, "trie")
        for prompt, each, score_A, logp_A in zip(asked, listed, scores_PA, logp_PA, strict=True):
            for ids, score, logp in zip(each.ids, score_A, logp_A, strict=True):
                end_D = lm.backend.read([(*prompt, *ids)])[0]
                assert float(score - logp) == pytest.approx(float(end_D @ lm.option_head), abs=1e-4)

"""The plain backend answers every call with the packed one's numbers, and can be asked for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from corridor import CorridorEnv

from benchmarks.families import tiny_model
from reflectrl.core.config import ModelConfig
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.models.backend import Candidates, Counters, Scoring
from reflectrl.models.lm import EngineOptions, LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.packed import PackedBackend
from reflectrl.models.plain import PlainBackend
from reflectrl.models.players import Policy, Reflector, sampler
from reflectrl.models.scratch import train_tokenizer
from reflectrl.models.sharing import Ids, pack

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
both = pytest.mark.parametrize(("family", "adapters"), [("gpt2", False), ("llama", True), ("qwen2", False)])
TEXTS = Candidates(((7, 0), (7, 9, 0), (30, 0)), (1, 2, 1))
LABELS = Candidates(((17,), (3,), (250,)), (1, 1, 1))


def plain(lm: LanguageModel, **options: bool) -> LanguageModel:
    """The same player on the plain backend."""
    return replace(lm, engine_options=EngineOptions(packed=False, **options), counters=Counters())


def prompts() -> list[Ids]:
    """Two steps of one episode, and a short prompt."""
    rng = np.random.default_rng(1)
    history, now, then, other = (tuple(rng.integers(2, 250, size=n).tolist()) for n in (24, 6, 9, 4))
    return [history + now, history + then + now, other]


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@both
def test_it_reads_what_the_packed_one_reads(pair: Pair, family: str, adapters: bool) -> None:
    lm = pair(family, adapters)[0]
    packing = pack(prompts())
    assert isinstance(lm.backend, PackedBackend) and isinstance(plain(lm).backend, PlainBackend)
    with torch.no_grad():
        for asked, at in ((prompts(), "ends"), (packing, "ends"), (packing, "all"), (packing, [3, 0, 30, 3])):
            same(plain(lm).backend.read(asked, at), lm.backend.read(asked, at))  # type: ignore[arg-type]
        hidden_ND, rows = lm.backend.read(prompts()), torch.tensor([5, 9], device=lm.device)
        same(plain(lm).backend.logits(hidden_ND, rows), lm.backend.logits(hidden_ND, rows))


@both
@pytest.mark.parametrize("scoring", get_args(Scoring))
def test_it_scores_and_has_gradients_as_the_packed_one(
    pair: Pair, family: str, adapters: bool, scoring: Scoring
) -> None:
    lm = replace(pair(family, adapters)[0])  # the head that scores options stays in this copy
    lm.ensure_option_head()
    answers = [LABELS if scoring == "enumeration" else TEXTS] * 3
    grads = []
    for one in (lm, plain(lm)):
        logits_PA, hidden_PD = one.backend.score(prompts(), answers, scoring)
        loss = logits_PA.log_softmax(-1)[:, 0].sum() + hidden_PD.square().mean()
        found = torch.autograd.grad(loss, lm.parameters(), allow_unused=True)
        grads.append(torch.cat([grad.flatten() for grad in found if grad is not None]))
        grads.append(torch.cat([logits_PA.flatten(), hidden_PD.flatten()]).detach())
    same(grads[3], grads[1])
    assert float((grads[2] - grads[0]).norm() / grads[0].norm()) < 1e-3


@both
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cached", [True, False])
def test_it_writes_what_the_packed_one_writes(
    pair: Pair, family: str, adapters: bool, temperature: float, cached: bool
) -> None:
    lm, written = pair(family, adapters)[0], []
    for one in (lm, plain(lm, cache=cached)):
        generators = [np.random.default_rng([3, i]) for i in range(3)]
        written.append(one.backend.write(prompts(), [6, 1, 9], sampler(Sampling(temperature)), generators))
    for (ids, logprobs), (others, theirs) in zip(*written, strict=True):
        assert ids == others
        assert logprobs == pytest.approx(theirs, abs=1e-4)


def test_players_on_it_play_the_same_episodes(pair: Pair) -> None:
    lms, episodes = pair("gpt2"), list[list[Episode]]()
    tasks = CorridorEnv().tasks("train")[:2]
    for policy, reflector in (lms, (plain(lms[0]), plain(lms[1]))):
        players = Policy(policy, Sampling(1.0)), Reflector(reflector, 6)
        jobs = [Job(task, i) for i, task in enumerate(tasks)]
        found = rollout(jobs, lambda: CorridorEnv(horizon=4, history=True), *players, 2)
        episodes.append(sorted(found, key=lambda episode: episode.seed))
        assert players[0].pool.nbytes == 0 or policy is lms[0]
    for one, other in zip(*episodes, strict=True):
        assert [step.action for step in one.steps] == [step.action for step in other.steps]
        assert [step.reflection for step in one.steps] == [step.reflection for step in other.steps]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """A model of some family in a folder."""

    def save(name: str) -> Path:
        tokenizer = train_tokenizer(["go to the sea"], 300)
        tiny_model(name, vocab_size=len(tokenizer)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def test_a_recipe_chooses_the_backend(folder: Callable[[str], Path]) -> None:
    backends = {"auto": PackedBackend, "packed": PackedBackend, "plain": PlainBackend}
    for name, kind in backends.items():
        lm = load_model(folder("gpt2"), ModelConfig(context=64, backend=name))  # type: ignore[arg-type]
        assert type(lm.backend) is kind
    assert type(load_model(folder("gemma2"), ModelConfig(context=64)).backend) is PlainBackend
    with pytest.raises(UserError, match=r"numbers on the packed backend; set model\.backend to auto or plain"):
        load_model(folder("gemma2"), ModelConfig(context=64, backend="packed"))


def test_who_asks_for_it_is_not_warned_of_it(folder: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    load_model(folder("llama"), ModelConfig(context=64, backend="plain"))
    assert not [record for record in caplog.records if record.name == "reflectrl"]

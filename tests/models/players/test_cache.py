"""Players that keep what they have read of an episode: nobody notices but the counters."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
import torch
from corridor import CorridorEnv

from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.players import LiveEpisode, Player
from reflectrl.core.prompts import reflector_prompt
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, Task, Turn
from reflectrl.models.backend import Counters, Scoring
from reflectrl.models.lm import LanguageModel
from reflectrl.models.options import option_trie
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.sharing import CACHE, ROUNDING, shared_length
from reflectrl.models.text_scoring import make_trie

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "canon_llama")
both = pytest.mark.parametrize(
    ("family", "adapters"), [(family, adapters) for family in FAMILIES for adapters in (False, True)]
)
SAMPLED, GREEDY = Sampling(1.0), Sampling(0.0)


class Careful(CorridorEnv):
    """With its history; what would end the walk is hidden, lest a policy that knows nothing be gone at once."""

    def __init__(self) -> None:
        super().__init__(length=30, history=True, horizon=7, impossible="hidden")


class Diary(TextEnv):
    """As many days as the horizon has; each adds a line to the history, and each has another number."""

    stages: ClassVar[tuple[str, ...]] = ("full",)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return [Task(f"{split}-{i}", "diary", {"tide": i}, split) for i in range(8)]

    def begin(self, task: Task) -> None:
        self.days: tuple[str, ...] = ()

    def apply(self, action: str) -> Outcome:
        self.days = (*self.days, action)
        return Outcome(0.0)

    def history(self) -> str:
        tide = self.task.payload["tide"]
        return f"{tide}, they say.\n" + "".join(
            f"Day {i}: chose to {day} and saw the sea at {tide}.\n" for i, day in enumerate(self.days)
        )

    def state(self) -> str:
        return f"Now it is day {len(self.days)}{'!' * (len(self.days) % 3)}\n"

    def legal_actions(self) -> Sequence[str]:
        return ("look", "look north", "north")[: 2 + len(self.days) % 2]

    def get_state(self) -> Any:
        return self.days

    def set_state(self, state: Any) -> None:
        self.days = state


def diary(days: int) -> TextEnv:
    return Diary(days)


def seat_of(task: int = 0, days: int = 50) -> LiveEpisode:
    env = Diary(days)
    env.reset(seed=0, options={"task": env.tasks("train")[task]})
    return LiveEpisode(env, env.task, task, np.random.default_rng(task), env.observe())


def go_on(live: LiveEpisode, turn: Turn) -> None:
    assert turn.choice is not None
    live.env.step(turn.choice)
    live.observation, live.turns = live.env.observe(), []


def roomy(lm: LanguageModel) -> LanguageModel:
    """The same player where nothing needs to be cut, with counters of its own."""
    return replace(lm, context=2048, counters=Counters())


def played(
    make_env: Callable[[], TextEnv],
    tasks: Sequence[Task],
    players: tuple[Player, Player],
    batch: int = 64,
    reflecting: float = 1.0,
) -> list[Episode]:
    """Episodes in the order of their tasks."""
    jobs = [Job(task, 50 + i) for i, task in enumerate(tasks)]
    found = {episode.seed: episode for episode in rollout(jobs, make_env, *players, batch, reflecting)}
    return [found[job.seed] for job in jobs]


def assert_same(one: Sequence[Episode], other: Sequence[Episode]) -> None:
    """All words, tokens and rewards to the letter; probabilities to what rounding leaves of them."""
    for first, second in zip(one, other, strict=True):
        assert len(first.steps) == len(second.steps)
        for a, b in zip(first.steps, second.steps, strict=True):
            assert (a.observation, a.action, a.reward, a.events) == (b.observation, b.action, b.reward, b.events)
            for turn, same in zip(a.turns, b.turns, strict=True):
                plain = {"logprobs": (), "probs": (), "entropy": None}
                assert replace(turn, **plain) == replace(same, **plain)  # type: ignore[arg-type]
                assert turn.logprobs == pytest.approx(same.logprobs, abs=1e-4)
                assert turn.probs == pytest.approx(same.probs, abs=1e-4)
                assert turn.entropy == pytest.approx(same.entropy, abs=1e-4)


# ---- the same episodes -----------------------------------------------------------------------------------------------


@both
def test_a_corridor_is_walked_alike_with_and_without_a_cache(pair: Pair, family: str, adapters: bool) -> None:
    """Sampled choices and sampled or greedy reflections; also when the cache holds little, and one at a time."""
    policy, reflector = (replace(lm, context=320) for lm in pair(family, adapters))
    tasks, results = Careful().tasks("train")[:4], []
    for cache, batch in ((0, 64), (CACHE, 64), (150 * policy.token_bytes, 3), (CACHE, 1)):
        first = Policy(policy, SAMPLED, cache=cache)
        second = Reflector(reflector, 6, SAMPLED if adapters else GREEDY, cache=cache)
        results.append(played(Careful, tasks, (first, second), batch))
    for other in results[1:]:
        assert_same(results[0], other)
    steps = [step for episode in results[0] for step in episode.steps]
    pasts = [policy.encode(step.observation.history) for step in steps]
    prompts = [list(first.prompt(step.observation, step.reflection)) for step in steps]
    cut = [prompt[: len(past)] != past for prompt, past in zip(prompts, pasts, strict=True)]
    assert any(cut)
    assert any(past and not gone for past, gone in zip(pasts, cut, strict=True)), "the test needs both"


@pytest.mark.parametrize(("scoring", "adapters"), [*zip(get_args(Scoring), [True, False] * 3, strict=False)])
def test_a_diary_is_written_alike_however_actions_are_scored(pair: Pair, scoring: Scoring, adapters: bool) -> None:
    """Episodes of equal tasks, of which some begin later; a reflector that does not always speak."""
    policy, reflector = pair("qwen2", adapters)
    tasks = [Diary(1).tasks("train")[i] for i in (0, 1, 0, 2, 3)]
    results = []
    for cache, batch in ((0, 64), (CACHE, 64), (CACHE, 2), (150 * policy.token_bytes, 3)):
        players = (
            Policy(policy, SAMPLED, shuffle_labels=True, cache=cache, scoring=scoring),
            Reflector(reflector, 5, SAMPLED, cache=cache),
        )
        results.append(played(partial(diary, 7), tasks, players, batch, reflecting=0.6))
    assert len({tuple(step.action for step in episode.steps) for episode in results[0]}) > 1
    assert {step.reflection is None for episode in results[0] for step in episode.steps} == {True, False}
    for other in results[1:]:
        assert_same(results[0], other)


@pytest.mark.parametrize("scoring", [one for one in get_args(Scoring) if one != "options"])
def test_choices_are_those_of_the_plain_model(pair: Pair, scoring: Scoring) -> None:
    """Probabilities late in an episode, against Hugging Face's own forward pass over each whole text."""
    lm = pair("llama")[0]
    policy, live = Policy(lm, SAMPLED, scoring=scoring), seat_of()
    for _ in range(5):
        actions = live.observation.actions
        prompt = policy.prompt(live.observation, None)
        [turn] = policy.turns([live])
        scores = []
        for i in range(len(actions)):
            answer = policy.answer(actions, i, i)
            with torch.no_grad():
                logp_TV = lm.model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0].log_softmax(-1)
            logp = logp_TV[len(prompt) - 1 : -1][range(len(answer)), answer].sum()
            scores.append(logp / {"token": len(answer), "word": len(actions[i].split())}.get(scoring, 1))
        if scoring != "trie":
            assert turn.probs == pytest.approx(torch.stack(scores).softmax(0).tolist(), abs=1e-4)
        assert sum(turn.probs) == pytest.approx(1, abs=1e-4)
        go_on(live, turn)


def test_seats_with_and_without_a_history_in_one_batch(pair: Pair) -> None:
    lm = pair("gpt2")[0]
    playing = [seat_of(i) for i in range(4)]
    for live in playing[::2]:
        live.observation = replace(live.observation, history="")
    together = Policy(lm, GREEDY).turns(playing)
    for live, turn in zip(playing, together, strict=True):
        [alone] = Policy(lm, GREEDY, cache=0).turns([live])
        assert turn.probs == pytest.approx(alone.probs, abs=1e-5)


def test_after_new_weights_and_forgetting_nothing_old_is_read(pair: Pair) -> None:
    lm = pair("gpt2")[0]
    policy, live, kept = Policy(lm, GREEDY, memory=0), seat_of(), lm.weights()
    for _ in range(3):
        go_on(live, policy.turns([live])[0])
    try:
        lm.load_weights({name: -weight for name, weight in kept.items()})
        [fresh] = Policy(lm, GREEDY, cache=0).turns([live])
        [stale] = policy.turns([live])
        policy.clear_cache()
        [forgotten] = policy.turns([live])
    finally:
        lm.load_weights(kept)
    assert forgotten.probs == pytest.approx(fresh.probs, abs=1e-5)
    assert stale.probs != pytest.approx(fresh.probs, abs=1e-3), "which is why one must forget"


# ---- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "adapters", "scoring"),
    [(family, adapters, "enumeration") for family in FAMILIES for adapters in (False, True)]
    + [(family, family == "llama", scoring) for family, scoring in zip(FAMILIES, get_args(Scoring)[1:], strict=True)],
)
def test_a_step_encodes_the_new_history_and_its_suffix_whatever_its_number(
    pair: Pair, family: str, adapters: bool, scoring: Scoring
) -> None:
    writing = 4
    policy_lm, reflector_lm = map(roomy, pair(family, adapters))
    policy = Policy(policy_lm, SAMPLED, scoring=scoring)
    reflector, live = Reflector(reflector_lm, writing, SAMPLED), seat_of()
    past, before, asked_before = 0, (), ()
    for step in range(32):
        asked = tuple(_tokens(reflector_lm, live))
        counted = reflector_lm.counters.copy()
        live.turns = reflector.turns([live])
        reflected = reflector_lm.counters.since(counted)
        prompt = policy.prompt(live.observation, live.reflection)
        counted = policy_lm.counters.copy()
        [turn] = policy.turns([live])
        chosen = policy_lm.counters.since(counted)
        history = len(policy_lm.encode(live.observation.history))
        branches = 0
        if scoring == "options" and not policy_lm.taps:  # models that read do not read the end of a text
            branches = len(option_trie(policy.candidates(live.observation.actions)).trie.ids)
        elif scoring != "enumeration":
            branches = len(make_trie(policy.candidates(live.observation.actions).ids).ids)
        if step > 1:  # the first history is too short to be worth keeping
            assert shared_length(before, prompt) == shared_length(asked_before, asked) == past
            assert chosen.encoded == len(prompt) - past + branches
            assert chosen.encoded == (history - past) + (len(prompt) - history) + branches
            assert (chosen.reused, chosen.decoded, chosen.passes) == (past, 0, 1)
            assert (reflected.encoded, reflected.reused) == (len(asked) - past, past)
        written = len(live.turns[0].token_ids)
        assert (written if written < writing else writing - 1) - reflected.decoded + reflected.drafted >= 0
        past, before, asked_before = history, prompt, asked
        go_on(live, turn)


def _tokens(lm: LanguageModel, live: LiveEpisode) -> list[int]:
    prompt = reflector_prompt(live.observation)
    return lm.encode(prompt.history) + lm.encode(prompt.rest)


def test_without_a_cache_all_is_encoded_at_every_step(pair: Pair) -> None:
    lm = roomy(pair("gpt2")[0])
    policy, live = Policy(lm, SAMPLED, cache=0), seat_of()
    for _ in range(6):
        counted = lm.counters.copy()
        [turn] = policy.turns([live])
        assert lm.counters.since(counted).encoded == len(policy.prompt(live.observation, None))
        assert lm.counters.since(counted).reused == 0
        go_on(live, turn)


def test_a_batch_encodes_what_its_episodes_encode(pair: Pair) -> None:
    lm = roomy(pair("gpt2")[0])
    tasks, costs = Diary(1).tasks("train")[:4], []
    for batch in (4, 2, 1):
        before = lm.counters.copy()
        episodes = played(partial(diary, 12), tasks, (Policy(lm, SAMPLED), Reflector(pair("gpt2")[1], 3)), batch)
        counted = lm.counters.since(before)
        policy = Policy(lm)
        prompts = [policy.prompt(step.observation, step.reflection) for e in episodes for step in e.steps]
        assert counted.encoded + counted.reused == sum(map(len, prompts))
        costs.append(counted.encoded)
    assert costs[0] == costs[1] == costs[2]


# ---- memory ----------------------------------------------------------------------------------------------------------


class Watched:
    """A player, and what its pool holds after every turn."""

    def __init__(self, player: Any) -> None:
        self.player, self.held = player, []  # type: ignore[var-annotated]

    def turns(self, playing: Sequence[LiveEpisode]) -> list[Turn]:
        found: list[Turn] = self.player.turns(playing)
        self.held.append(self.player.pool.nbytes)
        return found


@pytest.mark.parametrize(("family", "tokens"), [("gpt2", 0), ("llama", 100), ("gpt2", 700), ("qwen2", 10**6)])
def test_what_is_kept_stays_within_the_limit_and_goes_with_the_episodes(pair: Pair, family: str, tokens: int) -> None:
    policy_lm, reflector_lm = map(roomy, pair(family))
    limit = tokens * policy_lm.token_bytes
    policy = Watched(Policy(policy_lm, SAMPLED, cache=limit))
    reflector = Watched(Reflector(reflector_lm, 3, SAMPLED, cache=limit))
    tasks = Diary(1).tasks("train")[:4]
    episodes = played(partial(diary, 8), tasks, (policy, reflector))
    for one in (policy, reflector):
        assert len(one.held) == 8 and max(one.held) <= limit
        assert one.player.pool.peak >= max(one.held)
        if tokens == 10**6:
            prompts = [len(policy_lm.encode(e.steps[-1].observation.history)) for e in episodes]
            assert max(one.held) >= sum(prompts) * policy_lm.token_bytes
            assert max(one.held) <= sum(n + 100 + ROUNDING for n in prompts) * policy_lm.token_bytes
        gc.collect()
        assert one.player.pool.nbytes == 0
    if tokens == 0:
        assert policy_lm.counters.reused == reflector_lm.counters.reused == 0
    else:
        assert policy_lm.counters.reused > 0 or tokens == 100


def test_those_that_came_first_keep_theirs(pair: Pair) -> None:
    lm = roomy(pair("gpt2")[0])
    playing = [seat_of(i) for i in range(4)]
    policy = Policy(lm, SAMPLED, cache=2 * 6 * ROUNDING * lm.token_bytes)
    for _ in range(9):
        for live, turn in zip(playing, policy.turns(playing), strict=True):
            go_on(live, turn)
    kept = []
    for live in playing:
        before = lm.counters.copy()
        policy.turns([live])
        kept.append(lm.counters.since(before).reused)
    assert kept[0] > 100 and kept[1] > 100 and kept[2:] == [0, 0]


@both
def test_a_token_takes_as_many_bytes_as_is_said(pair: Pair, family: str, adapters: bool) -> None:
    lm = roomy(pair(family, adapters)[0])
    policy, live = Policy(lm, SAMPLED), seat_of()
    policy.turns([live])
    tokens = -(-len(policy.prompt(live.observation, None)) // ROUNDING) * ROUNDING
    assert policy.pool.nbytes == tokens * lm.token_bytes

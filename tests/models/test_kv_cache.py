"""Kept keys and values: what a cache holds, and how long and how much a pool keeps."""

import gc
from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reflectrl.models.sharing import ROUNDING, Ids, KVCache, KVCachePool, shared_length

LAYERS, HEADS, WIDTH = 2, 2, 3
TOKEN = LAYERS * 2 * HEADS * WIDTH * 4
"""Bytes of one token."""


def keys_of(ids: Ids, layer: int, start: int = 0) -> Tensor:
    """Stand-ins for keys, (1, G, T, D): each says what its token, place, layer and head are."""
    rows = [[[layer, head, token * 1000.0 + start + i] for i, token in enumerate(ids)] for head in range(HEADS)]
    return torch.tensor(rows).view(1, HEADS, len(ids), WIDTH)


def extend(cache: KVCache, prompt: Ids, least: int = 1, more: Ids = ()) -> int:
    """What the engine does with a prompt, and then with tokens that are forgotten; returns how many were kept."""
    kept = cache.match(prompt, least)
    for layer in range(LAYERS):
        new_1GSD = keys_of((*prompt, *more)[kept:], layer, kept)
        key, value = cache.append(layer, kept, new_1GSD, -new_1GSD)
        assert torch.equal(key, keys_of((*prompt, *more), layer)) and torch.equal(value, -key)
    cache.ids = prompt
    return kept


def holds(cache: KVCache, ids: Ids) -> bool:
    wanted = [keys_of(ids, layer) for layer in range(LAYERS)]
    held = [layer[:, :, : len(cache.ids)] for layer in cache.layers]
    return cache.ids == ids and all(torch.equal(held[i], torch.cat([key, -key])) for i, key in enumerate(wanted))


ids = st.lists(st.integers(0, 2), min_size=1, max_size=100).map(tuple)


@settings(max_examples=60, deadline=None)
@given(prompts=st.lists(ids, min_size=1, max_size=6), least=st.sampled_from([1, 3, 16]), more=st.integers(0, 80))
def test_a_prefix_holds_the_latest_prompt_and_keeps_what_it_shares(prompts: list[Ids], least: int, more: int) -> None:
    cache, before = KVCache(), ()
    for prompt in prompts:
        shared = min(shared_length(before, prompt), len(prompt) - 1)
        assert extend(cache, prompt, least, (7,) * more) == (shared if shared >= least else 0)
        assert holds(cache, prompt)
        before = prompt
    assert cache.match((before[0], 9, 9)) == 1
    assert holds(cache, before[:1])


def test_buffers_grow_by_steps() -> None:
    cache = KVCache()
    assert cache.nbytes == 0
    extend(cache, (1,) * 5)
    assert cache.nbytes == ROUNDING * TOKEN
    extend(cache, (1,) * ROUNDING)
    assert cache.nbytes == ROUNDING * TOKEN
    extend(cache, (1,) * (ROUNDING + 1))
    assert cache.nbytes == 2 * ROUNDING * TOKEN


def test_a_pass_that_was_interrupted_leaves_nothing_behind() -> None:
    cache = KVCache()
    extend(cache, (1, 2, 3))
    cache.match((1, 2, 5, 6))
    cache.append(0, 2, keys_of((5, 6), 0, 2), keys_of((5, 6), 0, 2))  # and the second layer is never reached
    assert extend(cache, (1, 2, 4)) == 2
    assert holds(cache, (1, 2, 4))


# ---- the pool --------------------------------------------------------------------------------------------------------


class Game:
    """Whatever lives as long as an episode."""


def play(pool: KVCachePool, games: Sequence[Game], prompts: Sequence[Ids], growing: bool = True) -> list[int]:
    """One step of all games; how many tokens of each were kept."""
    kept = []
    parts = pool.lend(games, [len(prompt) for prompt in prompts], [growing] * len(games))
    for rows, caches in parts:
        kept += [extend(cache, prompt) for cache, prompt in zip(caches, prompts[rows], strict=True)]
    assert len(kept) == len(games)
    return kept


def histories(count: int, length: int) -> list[Ids]:
    return [(game, *[9] * (length - 1)) for game in range(count)]


def test_an_episode_finds_what_it_kept_and_takes_it_along_when_it_ends() -> None:
    pool, games = KVCachePool(TOKEN, 10**6), [Game() for _ in range(3)]
    assert play(pool, games, histories(3, 10)) == [0, 0, 0]
    assert play(pool, games[::-1], histories(3, 20)[::-1]) == [10, 10, 10]
    assert pool.nbytes == pool.peak == 3 * ROUNDING * TOKEN
    del games[1]
    gc.collect()
    assert pool.nbytes == 2 * ROUNDING * TOKEN
    assert play(pool, games, [histories(3, 30)[i] for i in (0, 2)]) == [20, 20]
    assert pool.peak == 3 * ROUNDING * TOKEN
    pool.clear()
    assert pool.nbytes == 0 and play(pool, games, histories(2, 30)) == [0, 0]


def test_an_episode_without_history_keeps_nothing() -> None:
    pool, games = KVCachePool(TOKEN, 10**6), [Game()]
    assert play(pool, games, histories(1, 10), growing=False) == play(pool, games, histories(1, 10)) == [0]


def buffers(length: int) -> int:
    """Bytes that an episode's buffers take when it holds so many tokens."""
    return -(-length // ROUNDING) * ROUNDING * TOKEN


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=8),
    limit=st.integers(0, 12),
    grown=st.integers(0, 100),
)
def test_between_calls_it_keeps_within_its_limit_and_the_first_keep_theirs(
    lengths: list[int], limit: int, grown: int
) -> None:
    limit *= ROUNDING * TOKEN
    pool, games = KVCachePool(TOKEN, limit), [Game() for _ in lengths]
    prompts = [(i, *[9] * (length - 1)) for i, length in enumerate(lengths)]
    play(pool, games, prompts)
    assert pool.nbytes <= limit
    kept = play(pool, games, [(*prompt, *[5] * (grown + 1)) for prompt in prompts])
    first = sum(total <= limit for total in accumulate(buffers(length + grown + 1) for length in lengths))
    assert kept[:first] == lengths[:first], "they came first, and there is room for what they have become"
    assert pool.nbytes <= limit


@pytest.mark.parametrize("limit", [0, 1, 3, 100])
def test_parts_are_all_rows_in_order_each_once_and_as_many_as_fit(limit: int) -> None:
    games = [Game() for _ in range(7)]
    pool = KVCachePool(TOKEN, limit=0, working=limit * (10 + ROUNDING) * TOKEN)
    parts = [rows for rows, _ in pool.lend(games, [10] * 7, [True] * 7)]
    assert [i for rows in parts for i in range(7)[rows]] == [*range(7)]
    assert all(len(range(7)[rows]) <= max(1, limit) for rows in parts)
    assert len(parts) == (7 if limit <= 1 else 3 if limit == 3 else 1)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=8), limit=st.integers(0, 12), steps=st.integers(1, 3))
def test_within_a_call_it_takes_no_more_than_a_call_may_take_beside(lengths: list[int], limit: int, steps: int) -> None:
    room = (200 + 2 * ROUNDING) * TOKEN
    pool, games = KVCachePool(TOKEN, limit * ROUNDING * TOKEN, working=room), [Game() for _ in lengths]
    for step in range(steps):
        play(pool, games, [(i, *[step] * (length - 1)) for i, length in enumerate(lengths)])
    assert 0 < pool.peak <= pool.limit + room

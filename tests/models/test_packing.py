"""Packing: prompts are spelled by what their blocks see, and what they share stands once."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.models.sharing import LEAST, Ids, Packing, Span, no_sharing, pack, shared_length
from reflectrl.models.text_scoring import make_trie


@st.composite
def prompt_sets(draw: st.DrawFn) -> list[Ids]:
    """Prompts that continue, repeat, begin or ignore one another."""
    prompts: list[Ids] = []
    for _ in range(draw(st.integers(1, 10))):
        base = draw(st.sampled_from(prompts)) if prompts and draw(st.integers(0, 3)) else ()
        kept = draw(st.integers(0, len(base)) | st.just(len(base)))
        new = draw(st.lists(st.integers(0, 2), min_size=0 if kept else 1, max_size=30))
        prompts.append((*base[:kept], *new))
    return prompts


leasts = st.sampled_from([1, 2, 5, LEAST])


def spelled(packing: Packing, spans: tuple[Span, ...]) -> Ids:
    return tuple(token for block, count in spans for token in packing.blocks[block].ids[:count])


def tokens(packing: Packing) -> int:
    return sum(len(block.ids) for block in packing.blocks)


def beginnings(texts: list[Ids]) -> set[Ids]:
    """Every beginning of every text: the nodes of the smallest tree that holds them."""
    return {text[:n] for text in texts for n in range(1, len(text) + 1)}


@settings(max_examples=200, deadline=None)
@given(prompts=prompt_sets(), least=leasts)
def test_every_prompt_is_spelled_by_blocks_that_see_what_stands_before(prompts: list[Ids], least: int) -> None:
    packing = pack(prompts, least)
    for number, block in enumerate(packing.blocks):
        assert block.ids and sum(count for _, count in block.context) == block.start
        for earlier, count in block.context:
            assert earlier < number and 0 < count <= len(packing.blocks[earlier].ids)
    assert packing.lengths() == [len(prompt) for prompt in prompts]
    everything = [token for block in packing.blocks for token in block.ids]
    starts = [0, *accumulate(len(block.ids) for block in packing.blocks)]
    for i, (prompt, end) in enumerate(zip(prompts, packing.ends(), strict=True)):
        *before, (last, count) = packing.paths[i]
        assert packing[i] == prompt
        assert spelled(packing, packing.blocks[last].context) == spelled(packing, tuple(before)), "what the block sees"
        assert (end, everything[end]) == (starts[last] + count - 1, prompt[-1])


@settings(max_examples=200, deadline=None)
@given(prompts=prompt_sets(), least=leasts)
def test_it_never_costs_more_than_prompts_apart_and_repetitions_cost_nothing(prompts: list[Ids], least: int) -> None:
    assert tokens(pack(prompts, least)) <= tokens(no_sharing(prompts)) == sum(map(len, prompts))
    assert tokens(pack(prompts * 2, least)) == tokens(pack(prompts, least))


@settings(max_examples=200, deadline=None)
@given(prompts=prompt_sets())
def test_where_every_shared_token_counts_it_is_the_smallest_tree(prompts: list[Ids]) -> None:
    assert tokens(pack(prompts, least=1)) == len(beginnings(prompts))


@settings(max_examples=50, deadline=None)
@given(
    grown=st.lists(st.integers(LEAST, 60), min_size=1, max_size=12),
    suffix=st.lists(st.integers(1, 50), min_size=12, max_size=12),
    order=st.randoms(use_true_random=False),
    episodes=st.integers(1, 3),
)
def test_an_episode_is_encoded_as_its_history_once_and_every_suffix(
    grown: list[int], suffix: list[int], order: object, episodes: int
) -> None:
    """Suffixes begin otherwise than the history goes on; the history's last part is read by the last step."""
    prompts: list[Ids] = []
    for episode in range(episodes):
        history: Ids = ()
        for step, new in enumerate(grown):
            history = (*history, *(1000 * episode + 2 * i for i in range(len(history), len(history) + new)))
            prompts.append((*history, *[2 * step + 1] * suffix[step]))
    order.shuffle(prompts)  # type: ignore[attr-defined]
    assert tokens(pack(prompts)) == episodes * (sum(grown) + sum(suffix[: len(grown)]))


def test_of_nothing_it_makes_nothing() -> None:
    assert pack([]) == no_sharing([]) == Packing()
    assert pack([]).ends() == []


# ---- tries -----------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=8))
def test_a_trie_spells_its_texts_and_merges_their_beginnings(texts: list[Ids]) -> None:
    trie = make_trie(texts)
    assert len(trie.ids) == len(beginnings([text[:-1] for text in texts]))
    for text, path in zip(texts, trie.paths, strict=True):
        assert tuple(trie.ids[node] for node in path) == text[:-1]
        assert [trie.depths[node] for node in path] == [*range(len(path))]
        assert [trie.parents[node] for node in path] == [-1, *path][: len(path)]
    seen = trie.ancestors()
    for node, parent in enumerate(trie.parents):
        assert parent < node
        above = set(seen[parent].nonzero()[0].tolist()) if parent >= 0 else set()
        assert set(seen[node].nonzero()[0].tolist()) == {node, *above}


@pytest.mark.parametrize(("one", "other", "shared"), [((), (1,), 0), ((1, 2), (1, 2), 2), ((1, 2, 3), (1, 2, 4, 3), 2)])
def test_shared_length(one: Ids, other: Ids, shared: int) -> None:
    assert shared_length(one, other) == shared_length(other, one) == shared

"""The replay buffer: what it keeps, what it forgets, and how it is sampled."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.types import Episode, Task
from reflectrl.learn.replay import ReplayBuffer


def episodes(*outcomes: bool, start: int = 0) -> list[Episode]:
    return [Episode(Task(f"t{i}", "toy"), (), won, False, seed=i) for i, won in enumerate(outcomes, start)]


def ids(kept) -> list[str]:
    return [episode.task.id for episode in kept]


def test_keeps_successes_only_and_the_latest_of_them():
    buffer = ReplayBuffer(2)
    buffer.add(episodes(True, False, True))
    assert ids(buffer.episodes) == ["t0", "t2"]
    buffer.add(episodes(False, True, start=3))
    assert ids(buffer.episodes) == ["t2", "t4"]


def test_no_slots_keep_nothing():
    buffer = ReplayBuffer(0)
    buffer.add(episodes(True, True))
    assert len(buffer) == 0 and buffer.sample(3, np.random.default_rng(0)) == []


def test_clear_forgets_everything():
    buffer = ReplayBuffer(4, episodes(True, True))
    buffer.clear()
    assert len(buffer) == 0 and buffer.episodes == ()


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 10), st.integers(0, 12), st.integers(0, 99))
def test_samples_are_different_kept_successes(outcomes, slots, count, seed):
    buffer = ReplayBuffer(slots, episodes(*outcomes))
    drawn = buffer.sample(count, np.random.default_rng(seed))
    assert len(drawn) == min(count, len(buffer)) == min(count, slots, sum(outcomes))
    assert len(set(ids(drawn))) == len(drawn)
    assert set(ids(drawn)) <= set(ids(buffer.episodes))


def test_a_buffer_with_few_episodes_may_repeat_them():
    buffer, rng = ReplayBuffer(4, episodes(True, True)), np.random.default_rng(0)
    assert len(buffer.draw(5, rng)) == 2
    drawn = buffer.draw(50, rng, repeats=True)
    assert len(drawn) == 50 and set(drawn) == {0, 1}


def test_sampling_is_uniform_and_repeats_with_its_generator():
    buffer = ReplayBuffer(4, episodes(True, True, True, True))
    rng = np.random.default_rng(0)
    counts = Counter(name for _ in range(1000) for name in ids(buffer.sample(2, rng)))
    assert all(abs(counts[f"t{i}"] - 500) < 80 for i in range(4))  # five standard deviations
    same = [ids(buffer.sample(3, np.random.default_rng(7))) for _ in range(2)]
    assert same[0] == same[1]


def test_is_rebuilt_from_its_episodes():
    buffer = ReplayBuffer(3, episodes(True, True, True, True))
    again = ReplayBuffer(3, buffer.episodes)
    for both in (buffer, again):
        both.add(episodes(True, start=9))
    assert again.episodes == buffer.episodes


def test_what_has_more_to_teach_is_drawn_more_often():
    buffer = ReplayBuffer(4, episodes(True, True, True))
    assert buffer.priorities == (1.0, 1.0, 1.0)
    buffer.set_priorities([0, 2], [6.0, 0.5])
    rng = np.random.default_rng(0)
    drawn = Counter(buffer.draw(1, rng, by_priority=True)[0] for _ in range(3000))
    assert 0.75 < drawn[0] / 3000 < 0.85 and drawn[2] < drawn[1]
    buffer.add(episodes(True, start=3))
    assert buffer.priorities == (6.0, 1.0, 0.5, 6.0)  # a new one is as good as the best
    assert sorted(buffer.draw(9, rng, by_priority=True)) == [0, 1, 2, 3]


def test_priorities_stay_with_their_episodes():
    buffer = ReplayBuffer(2, episodes(True, True), [3.0, 1.0])
    buffer.add(episodes(True, start=2))
    assert ids(buffer.episodes) == ["t1", "t2"] and buffer.priorities == (1.0, 3.0)
    again = ReplayBuffer(2, buffer.episodes, buffer.priorities)
    assert again.draw(1, np.random.default_rng(3), True) == buffer.draw(1, np.random.default_rng(3), True)
    buffer.clear()
    assert buffer.priorities == ()

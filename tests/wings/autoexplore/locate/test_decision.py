"""Decision of `locate`: matches by enumeration, the network in torch and numpy, excerpts, and further looks."""

from collections.abc import Callable
from math import exp, log1p
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.locate_decision import LOOKS, Network
from benchmarks.locate_looking import further_looks
from benchmarks.locate_walks import SETS, LookingPolicy, Walks, imitate, is_in, reinforce
from reflectrl.wings.autoexplore.locate import decision, ranker
from reflectrl.wings.autoexplore.locate.answers import Locator
from reflectrl.wings.autoexplore.locate.decision import Decider
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.excerpts import Excerpt
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.matches import (
    FEATURES,
    OF_PART,
    PART_WORDS,
    QUESTION_WORDS,
    SIMILARITIES,
    WIDTH,
    matches,
    question_words,
)
from reflectrl.wings.autoexplore.locate.meaning import Meaning, shipped_vectors
from reflectrl.wings.autoexplore.locate.ranker import shipped_ranker
from reflectrl.wings.autoexplore.words import words

WORDS = ("retry", "policy", "config", "open", "socket", "zzqx", "delay", "é")
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
EXCERPTS = st.lists(st.builds(Excerpt, TEXTS, TEXTS, TEXTS, TEXTS), min_size=1, max_size=4)


def one_match(word: str, text: str, most: int, meaning: Meaning) -> list[float]:
    """Compare a word of the question with a part of an excerpt, word by word."""
    asked = meaning.of({word: 1.0})
    soft, own, best = [0.0] * len(SIMILARITIES), 0, 0.0
    for other in words(text)[:most]:
        if other == word:
            own += 1
            continue
        similarity = float(asked @ meaning.of({other: 1.0}))
        if similarity:
            soft = [s + exp(-((similarity - c) ** 2) / (2 * WIDTH**2)) for s, c in zip(soft, SIMILARITIES, strict=True)]
            best = max(best, similarity)
    return [*map(log1p, soft), log1p(own), 1.0 if own else best]


@settings(deadline=None, max_examples=40)
@given(asked=st.lists(st.sampled_from(WORDS), max_size=5, unique=True), excerpts=EXCERPTS)
def test_matches_are_those_of_a_loop(asked: list[str], excerpts: list[Excerpt]) -> None:
    meaning = shipped_vectors()
    found = matches(asked, excerpts, meaning)
    assert found.shape == (len(excerpts), len(asked), FEATURES)
    for by_word, excerpt in zip(found, excerpts, strict=True):
        for values, word in zip(by_word, asked, strict=True):
            expected = [one_match(word, getattr(excerpt, part), most, meaning) for part, most in PART_WORDS.items()]
            assert values.reshape(-1, OF_PART) == pytest.approx(np.array(expected), abs=1e-4)


def test_the_weightiest_words_of_a_long_question_are_compared() -> None:
    weights = {f"word{i}": float(i) for i in range(QUESTION_WORDS + 5)}
    assert list(question_words(weights)) == [f"word{i}" for i in reversed(range(5, QUESTION_WORDS + 5))]


def random_network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    network = Network().eval()
    with torch.no_grad():
        network.out.normal_()
    return network


def decider_of(*networks: Network) -> Decider:
    names = [name for name, _ in networks[0].named_parameters()]
    weights = {name: np.stack([each.get_parameter(name).detach().numpy() for each in networks]) for name in names}
    return Decider({**weights, "sharpness": np.array(1.0)}, shipped_vectors())


@settings(deadline=None, max_examples=20)
@given(asked=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5, unique=True), excerpts=EXCERPTS)
def test_the_package_computes_what_was_trained(asked: list[str], excerpts: list[Excerpt]) -> None:
    networks, meaning = [random_network(seed) for seed in range(2)], shipped_vectors()
    weights = {word: 1.0 + index for index, word in enumerate(asked)}
    search = np.arange(len(excerpts), dtype=np.float32)
    ordered = question_words(weights)
    inputs = (
        matches(list(ordered), excerpts, meaning),
        np.array(list(ordered.values()), np.float32),
        meaning.each(ordered),
        search,
    )
    # a second question with fewer words pads the first one's batch
    padded = [torch.tensor(array)[None] for array in inputs]
    padded[0] = torch.nn.functional.pad(padded[0], (0, 0, 0, 3))
    padded[1] = torch.nn.functional.pad(padded[1], (0, 3))
    padded[2] = torch.nn.functional.pad(padded[2], (0, 0, 0, 3))
    with torch.inference_mode():
        expected = torch.stack([network(*padded)[0] for network in networks]).mean(0).numpy()
    assert decider_of(*networks).scores(weights, excerpts, search) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_question_without_known_words_keeps_the_order_of_the_search() -> None:
    search = np.array([2.0, 1.0], np.float32)
    assert decider_of(random_network()).scores({}, [Excerpt("a"), Excerpt("b")], search).tolist() == [2.0, 1.0]


# ---- what is seen of a file ------------------------------------------------------------------------------------------

CLIENT = """# license of somebody
import retry

def connect(host):
    policy = make_policy(3)
    return open_socket(host, policy)

def unrelated():
    return 1
"""
RETRY = """class RetryPolicy:
    limit = 3

def make_policy(limit):
    'a policy of retries'
    return RetryPolicy(limit)
"""


@pytest.fixture
def client(tmp_path: Path) -> Path:
    root = tmp_path / "client"
    (root / "net").mkdir(parents=True)
    (root / "net" / "client.py").write_text(CLIENT)
    (root / "net" / "retry.py").write_text(RETRY)
    (root / "net" / "pages.py").write_text("def load_pages():\n    return 'pages'\n")
    return root


def seen(root: Path, question: str) -> dict[str, Excerpt]:
    engine, inquiry = Engine(root, cached=False), Inquiry.of(question)
    candidates = engine.candidates(inquiry)
    excerpts = engine.excerpts(inquiry, candidates, range(len(candidates.files)))
    return {excerpt.path: excerpt for excerpt in excerpts}


def test_an_excerpt_shows_definition_and_matching_lines_and_who_names_the_file(client: Path) -> None:
    excerpts = seen(client, "where does connect make its policy for the socket?")
    assert excerpts["net/client.py"].names == "connect, unrelated"
    assert excerpts["net/client.py"].lines.split("\n") == [
        "def connect(host):", "policy = make_policy(3)", "return open_socket(host, policy)",
    ]  # fmt: skip
    assert excerpts["net/retry.py"].naming == "net/client.py"


def test_an_identifier_of_the_question_is_shown_before_common_words(tmp_path: Path) -> None:
    lines = [f"policy_{i} = {i}  # policy of connection" for i in range(8)]
    (tmp_path / "many.py").write_text("def first():\n" + "\n".join(f"    {line}" for line in lines)
                                      + "\n    RetryLimit = 3\n")  # fmt: skip
    (tmp_path / "other.py").write_text("policy = 'connection'\n")
    assert "RetryLimit = 3" in seen(tmp_path, "policy of connection with `RetryLimit`")["many.py"].lines


# ---- the choice ------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for i in range(12):
        (tmp_path / f"part{i:02}.py").write_text(f"def retries_{i}():\n    'configured {i}'\n" + "x = 1\n" * i)
    return tmp_path


class Reversing(Decider):
    """Decision model that turns the order of the search round."""

    def scores(self, weights, excerpts, search_F):  # type: ignore[no-untyped-def]
        return -search_F


def test_the_choice_is_among_the_first_files_and_the_others_stand_below(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = "where are retries configured?"
    engine, inquiry = Engine(many, cached=False), Inquiry.of(question)
    candidates = engine.candidates(inquiry)
    order = np.argsort(-shipped_ranker().scores(candidates.grounds), kind="stable")
    searched = [engine.index.corpus.paths[int(candidates.files[index])] for index in order]
    monkeypatch.setattr(
        "reflectrl.wings.autoexplore.locate.engine.shipped_decider",
        lambda meaning: Reversing({"out": np.zeros((0, 1)), "sharpness": np.array(1.0)}, meaning),
    )
    hits = Locator(many, cached=False).locate(question, 12).files
    assert [hit.path for hit in hits] == searched[:8][::-1] + searched[8:]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert [hit.probability for hit in hits] == sorted((hit.probability or 0 for hit in hits), reverse=True)


def test_an_answer_says_whether_it_is_sure(many: Path, client: Path) -> None:
    unsure = Locator(many, cached=False).locate("where are retries configured?", 3)
    assert unsure.is_sure is False and (unsure.files[0].probability or 0) < decision.UNSURE
    assert Locator(client, cached=False).locate("make_policy in retry.py", 3).is_sure is True
    assert Locator(client, cached=False).locate("zebra", 3).is_sure is False
    assert Locator(client, names_only=True).locate("retry", 3).is_sure is None


# ---- further looks ---------------------------------------------------------------------------------------------------


def looks(root: Path, question: str) -> dict[str, list[str]]:
    engine, inquiry = Engine(root, cached=False), Inquiry.of(question)
    candidates = engine.candidates(inquiry)
    ranker = shipped_ranker()
    shown = further_looks(engine, ranker, inquiry, candidates, ranker.scores(candidates.grounds))
    paths = engine.index.corpus.paths
    return {name: [paths[int(candidates.files[index])] for index in indices] for name, indices in shown.items()}


def test_names_are_followed_to_the_files_that_define_them(many: Path) -> None:
    for i in range(9):
        name = f"first{i}.py"
        (many / name).write_text(
            f"def retries_configured_{i}():\n    'where retries are configured'\n    return Zq{i}x()\n"
        )
    (many / "far.py").write_text(
        "class Zq0x:\n    retries = 1\n\nclass Zq1x:\n    pass\n\nclass Zq2x:\n    pass\n" + "\n" * 50
    )
    shown = looks(many, "where are retries configured?")
    assert shown["follow"] == ["far.py"]
    assert len(shown["more"]) == 4 and not set(shown["more"]) & {f"first{i}.py" for i in range(8)}


def test_few_files_leave_nothing_to_look_at(client: Path) -> None:
    assert looks(client, "where is the policy made?") == {"more": [], "follow": [], "ask again": []}


def walks_of(ranks: list[list[int]], inputs: list[list[float]]) -> Walks:
    """Make walks whose states are the inputs and what was looked at."""
    looked = np.array([[is_in(look, s) for look in range(1, len(LOOKS))] for s in range(SETS)], np.float32)
    states = np.array([[[*row, *looked[s]] for s in range(SETS)] for row in inputs], np.float32)
    return Walks(states, np.array(ranks), np.zeros((len(ranks), SETS), np.int64))


@pytest.mark.parametrize("learn", [imitate, reinforce])
def test_the_policy_learns_to_look_where_it_pays(learn: Callable[[LookingPolicy, Walks], None]) -> None:
    # look 2 alone finds the answer of the first kind of question; no look helps with the second kind
    found = [1 if is_in(2, s) else 100 for s in range(SETS)]
    walks = walks_of([found, [3] * SETS] * 4, [[1.0, 0.0], [0.0, 1.0]] * 4)
    policy = LookingPolicy(walks.states_NSX.shape[-1])
    learn(policy, walks)
    reached = policy.reached(torch.from_numpy(walks.states_NSX), greedy=True).argmax(1).numpy()
    assert [is_in(2, looked) for looked in reached.tolist()] == [True, False] * 4
    worth = walks.returns()[np.arange(8), reached]
    assert worth == pytest.approx(walks.returns().max(axis=1), abs=0.006)  # at most one look too many


def test_walks_end_somewhere_and_no_look_is_taken_twice() -> None:
    torch.manual_seed(0)
    walks = walks_of([[1] * SETS] * 5, [[float(i)] for i in range(5)])
    policy = LookingPolicy(walks.states_NSX.shape[-1])
    torch.nn.init.normal_(policy.linear.weight)
    states = torch.from_numpy(walks.states_NSX)
    assert torch.allclose(policy.reached(states).sum(1), torch.ones(5), atol=1e-5)
    logp = policy(states)
    for looked in range(SETS):
        for look in range(1, len(LOOKS)):
            assert bool(torch.isinf(logp[:, looked, look]).all()) == is_in(look, looked)


@pytest.mark.parametrize("cosines", [[-0.2], [-0.2, -0.4], [0.0], [1e-9, -0.5], [0.001, -0.9], [0.3, -0.1]])
def test_a_negative_cosine_is_no_multiple_of_next_to_nothing(cosines: list[float]) -> None:
    grounds = np.zeros((len(cosines), len(ranker.COLUMNS)), np.float32)
    grounds[:, ranker.COLUMNS.index("meaning path")] = cosines
    assert np.abs(ranker.inputs(grounds)).max() <= 1


def test_the_only_file_with_a_word_is_a_sure_answer(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        'def plain():\n    """Nothing to see: a module about gardening."""\n    return 1\n'
    )
    (tmp_path / "bread.py").write_text('def bake_bread(heat):\n    """Bakes the sourdough loaf."""\n    return heat\n')
    engine = Engine(tmp_path, cached=False)
    for word, path in (
        ("gardening", "plain.py"),
        ("loaf", "bread.py"),
        ("sourdough", "bread.py"),
        ("heat", "bread.py"),
    ):
        [hit] = engine.search(word, 5)
        assert hit.path == path and hit.probability and hit.probability >= decision.UNSURE and abs(hit.score) < 1000

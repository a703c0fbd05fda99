"""The search baseline: BM25's figures by hand, the reasons beside each file, and questions of all kinds."""

import math
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.search import K1, LINE_CHARACTERS, NAMES_WEIGHT, B, Postings, Search

FILES = {
    "README.md": "A client for the web service.\nIt loads pages.\n",
    "client/retry.py": "import time\n\n\nMAX_RETRIES = 3  # how often a request is retried\n",
    "client/request.py": "def send(request):\n    return request.sent()\n",
    "client/pages.py": "class Page:\n    title = 'a page'\n",
    "docs/guide.md": "Configure everything in one place.\nA request that fails is retried.\n",
}
QUESTION = "request pages retried client title request"


def repository(root: Path, files: dict[str, str]) -> Repository:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Repository.open(root)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return repository(tmp_path_factory.mktemp("client"), FILES)


def test_scores_are_those_of_the_formula() -> None:
    """Two documents of 3 and 5 words: the average is 4."""
    postings = Postings([{"retry": 2, "page": 1}, {"page": 5}])
    rare, usual = math.log(1 + 1.5 / 1.5), math.log(1 + 0.5 / 2.5)

    def part(times: int, length: int) -> float:
        return times * (K1 + 1) / (times + K1 * (1 - B + B * length / 4))

    expected = [2 * rare * part(2, 3) + usual * part(1, 3), usual * part(5, 5)]
    assert postings.scores({"retry": 2, "page": 1, "unknown": 7}).tolist() == pytest.approx(expected)


def test_no_documents_have_no_scores() -> None:
    assert Postings([]).scores({"retry": 1}).tolist() == []


def test_a_hit_carries_its_reason(client: Repository) -> None:
    [first, second] = Search(client, "files").search("How often is a request retried?", 2)
    assert (first.path, first.words) == ("client/retry.py", ("often", "retried", "request"))
    assert (first.line, first.text) == (4, "MAX_RETRIES = 3 # how often a request is retried")
    assert (second.path, second.line) == ("docs/guide.md", 2)
    assert first.score > second.score > 0


def test_words_are_those_of_the_question_and_the_rarest_come_first(client: Repository) -> None:
    [hit] = Search(client, "files").search("request Requests, CONFIGURES", 1)
    assert hit.words == ("configures", "request")


def test_names_only_reads_no_contents(client: Repository) -> None:
    search = Search(client, "names")
    assert [hit.path for hit in search.search("everything about a request", 5)] == ["client/request.py"]
    [hit] = search.search("pages", 1)
    assert (hit.path, hit.words, hit.line, hit.text) == ("client/pages.py", ("pages",), None, "")


def test_both_adds_the_scores_up(client: Repository) -> None:
    files, names, both = (dict(Search(client, over).rank("request pages")) for over in ("files", "names", "both"))
    assert names.keys() < files.keys() == both.keys()
    assert both == pytest.approx({path: files[path] + NAMES_WEIGHT * names.get(path, 0.0) for path in files})


def test_a_file_that_only_its_path_speaks_for_has_no_line(tmp_path: Path) -> None:
    [hit] = Search(repository(tmp_path, {"retry.py": "nothing to see here\n"})).search("retries", 3)
    assert (hit.words, hit.line, hit.text) == (("retries",), None, "")


def test_equal_scores_are_sorted_by_path(tmp_path: Path) -> None:
    files = {f"{name}.txt": "the same words everywhere\n" for name in "hbfkjgce"}
    search = Search(repository(tmp_path, files))
    assert [hit.path for hit in search.search("same words", 8)] == sorted(files)
    assert [path for path, _ in search.rank("same words")] == sorted(files)


def test_a_line_is_printable_and_not_longer_than_a_piece(tmp_path: Path) -> None:
    hostile = "retry \x1b[31m\x07\u202eevil\u2028\tend"
    long = "x = 1; " * 200 + "backoff()" + " y = 2;" * 200
    search = Search(repository(tmp_path, {"a.py": f"first\n{hostile}\n", "b.py": f"{long}\n"}))
    [hit] = search.search("retry", 1)
    assert (hit.line, hit.text) == (2, "retry [31m evil end")
    [hit] = search.search("backoff", 1)
    assert hit.line == 1 and "backoff()" in hit.text and len(hit.text) <= LINE_CHARACTERS


@pytest.mark.parametrize(
    ("question", "about"), [("", "empty"), (" \n", "empty"), ("what is it?", "no word"), ("?!", "no word")]
)
def test_a_question_without_words_is_a_mistake(client: Repository, question: str, about: str) -> None:
    with pytest.raises(UserError, match=about):
        Search(client).search(question, 3)


def test_a_question_of_ten_thousand_words(client: Repository) -> None:
    question = " ".join(f"word{i} thing_{i}" for i in range(5000)) + " retried"
    assert Search(client).search(question, 1)[0].path == "client/retry.py"


def test_a_file_that_has_changed_is_found_by_its_path(tmp_path: Path) -> None:
    found = repository(tmp_path, FILES)
    (tmp_path / "client/retry.py").write_text("something else altogether\n", encoding="utf-8")
    [hit] = Search(found).search("retry", 1)
    assert hit.path == "client/retry.py" and hit.line is None


def test_a_copy_for_another_process_answers_alike(client: Repository) -> None:
    search = Search(client)
    before = search.search("request", 3)
    assert pickle.loads(pickle.dumps(search)).search("request", 3) == before  # noqa: S301 - made here


@settings(deadline=None, max_examples=50)
@given(st.permutations(QUESTION.split()), st.integers(0, 7))
def test_neither_the_order_of_words_nor_k_changes_the_ranking(client: Repository, order: list[str], k: int) -> None:
    search = Search(client)
    ranked = search.rank(QUESTION)
    assert search.rank(" ".join(order)) == ranked
    assert [(hit.path, hit.score) for hit in search.search(" ".join(order), k)] == ranked[:k]


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=40))
def test_any_question_is_answered_or_refused(client: Repository, question: str) -> None:
    try:
        hits = Search(client).search(question, 3)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert all(hit.score > 0 and hit.words and hit.text.isprintable() for hit in hits)

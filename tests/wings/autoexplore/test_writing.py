"""Questions that are written without a language model: from what, how many, and which are refused."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.making.asking import Asker
from reflectrl.wings.autoexplore.making.make import leak_share, split_by_task, split_of_repositories
from reflectrl.wings.autoexplore.making.rewording import leaks
from reflectrl.wings.autoexplore.making.tasks import PER_FILE, Draft, DraftFilter, write_questions_about
from reflectrl.wings.autoexplore.making.topics import Topic, topics
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.words import words
from tests.wings.autoexplore.written import write_shop

CODE = '''"""Sends letters."""
class Pigeon(TrainedBird, Messenger):
    """Carries letters over the hills."""
    def fly_home(self, distance, wind=0):
        """Return to the loft before dark."""
        # storms over the hills make it turn back
        self.ask_way(distance)
        raise LostPigeonError
    def __repr__(self): ...
MOST_LETTERS = 3
'''


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    return Repository.open(write_shop(tmp_path / "shop"))


class TestTopics:
    def test_of_code(self) -> None:
        found = {(topic.source, topic.name): topic for topic in topics("src/mail.py", CODE)}
        assert list(found) == [
            ("docstring", ""), ("docstring", "Pigeon"), ("docstring", "fly_home"), ("comment", "fly_home"),
            ("name", "MOST_LETTERS"),
        ]  # fmt: skip
        flight = found["docstring", "fly_home"]
        assert (flight.told, flight.owner_told) == (
            "Return to the loft before dark.",
            "Carries letters over the hills.",
        )
        assert (flight.calls, flight.raises) == (("ask_way",), ("LostPigeonError",))
        assert flight.takes == ("distance", "wind")
        assert found["docstring", "Pigeon"].bases == ("TrainedBird",)
        assert found["comment", "fly_home"].told == "storms over the hills make it turn back"

    def test_of_documentation(self) -> None:
        text = (
            "# Usage\n\n## Feeding the birds\n\nBirds are fed at noon, every day, by the warden.\n\n## 1.2.3\n\n- x\n"
        )
        (topic, *_) = topics("docs/care.md", text)
        assert (topic.kind, topic.name) == ("section", "Feeding the birds")
        assert topics("LICENSE", "Permission is hereby granted") == []

    def test_of_data(self) -> None:
        (topic,) = topics("data/birds.csv", "name,wing span,weight\na,1,2\n")
        assert (topic.kind, topic.takes) == ("keys", ("name", "wing span", "weight"))
        assert topics("a.toml", "[mail]\nserver = 1\n")[0].owner == "mail"

    @pytest.mark.parametrize(
        "line", ["class Pigeon():", "class Pigeon:", "class Pigeon(metaclass=M):", "class Pigeon(x.Bird):"]
    )
    def test_classes_without_bases_of_telling_names(self, line: str) -> None:
        (topic,) = topics("a.py", f"{line}\n    pass\n")
        assert topic.bases == ()

    @given(st.text(max_size=80), st.sampled_from(["a.py", "a.md", "a.csv", "a.toml", "a.js", "README", "a.xyz"]))
    def test_nothing_makes_it_fail(self, text: str, path: str) -> None:
        rng = random.Random(0)
        for topic in topics(path, text):
            Asker(rng).ask(topic)


WORDS = ("return", "if", "the", "page", "of", "to", "a", "is", "sends", "and", "when", ",", "List", "(x)", "`y`", "for")
sentences = st.lists(st.sampled_from(WORDS), max_size=9)


@given(
    sentences.map(" ".join),
    st.sampled_from(["class", "function", "constant", "module", "section"]),
    st.sampled_from(["", "get_page", "X", "is_open", "__init__"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_topic_can_be_asked_about(told: str, kind: str, name: str, full: bool, seed: int) -> None:
    more = {"owner": "Page", "calls": ("send_page",), "raises": ("PageError",), "takes": ("size",), "bases": ("Big",)}
    topic = Topic("a/b.py", "docstring", kind, name, told, **(more if full else {}))  # type: ignore[arg-type]
    question = Asker(random.Random(seed)).ask(topic)
    assert question is None or ("{" not in question and "\n" not in question and question == question.strip())


class TestQuestions:
    def test_about_a_repository(self, shop: Repository) -> None:
        questions, dropped = write_questions_about("shop", shop, "MIT", 0, 60)
        assert 20 <= len(questions) <= 60
        assert {question.repo for question in questions} == {"shop"}
        assert {question.licence for question in questions} == {"MIT"}
        assert len({question.id for question in questions}) == len(questions)
        assert all(path in shop for question in questions for path in question.gold)
        assert max(Counter(question.gold for question in questions).values()) <= PER_FILE
        assert {"docstring", "comment", "name", "docs"} <= {question.source for question in questions}
        assert leak_share(questions) < 0.1
        assert {"fits many files", "asked before"} & {entry.reason for entry in dropped}
        assert all(entry.name.removeprefix("shop:") in shop and entry.stage == "tasks" for entry in dropped)

    def test_the_same_seed_gives_the_same_ones(self, shop: Repository) -> None:
        first = write_questions_about("shop", shop, "MIT", 1, 30)[0]
        again = Repository.open(shop.root)
        assert write_questions_about("shop", again, "MIT", 1, 30)[0] == first
        assert write_questions_about("shop", again, "MIT", 2, 30)[0] != first

    def test_at_most_so_many(self, shop: Repository) -> None:
        assert len(write_questions_about("shop", shop, "", 0, 5)[0]) == 5


class TestDraftFilter:
    def judged(self, shop: Repository, question: str, path: str = "shop/recipes.py") -> tuple[Draft | None, str]:
        drafts = DraftFilter(shop, random.Random(0))
        task = drafts.accepted(Draft(question, path, "docstring"))
        return task, "".join(reason for _, reason in drafts.dropped)

    @pytest.mark.parametrize(
        ("question", "reason"),
        [
            ("where is recipe tax computed?", ""),
            ("recipe tax", "too short or too long"),
            ("recipe " * 70, "too short or too long"),
            ("where is the zebra in the zoo?", "has nothing in common"),
            ("what is it and why?", "has nothing in common"),
            ("where is tax computed by rate?", "fits many files"),
        ],
    )
    def test_what_is_refused(self, shop: Repository, question: str, reason: str) -> None:
        task, dropped = self.judged(shop, question)
        assert (task is None) == bool(reason) and dropped.startswith(reason)

    def test_nearly_the_same_is_asked_once(self, shop: Repository) -> None:
        drafts = DraftFilter(shop, random.Random(0))
        assert drafts.accepted(Draft("where is recipe tax computed?", "shop/recipes.py", "name"))
        assert drafts.accepted(Draft("How is the recipe's tax computed?", "shop/recipes.py", "name")) is None
        second = Draft("How is the recipe's tax computed?", "shop/recipes.py", "name")
        assert drafts.dropped == [(second, "asked before")]

    def test_the_name_of_the_file_goes(self, shop: Repository) -> None:
        drafts = DraftFilter(shop, random.Random(0))
        task = drafts.accepted(Draft("where is the mail server of the settings kept?", "settings.toml", "header"))
        assert task is not None and not leaks(task.question, "settings.toml")
        kept = [
            drafts.accepted(Draft(f"recipes for {word} recipe cupboard number", "shop/recipes.py", "name"))
            for word in ("tax archive", "year date", "sorted", "missing", "returned find")
        ]
        assert [reason for _, reason in drafts.dropped].count("names the file") >= 2 and len(kept) == 5


class TestSplits:
    def test_by_repository(self) -> None:
        names = [f"r{number}" for number in range(20)]
        split = split_of_repositories(names, 0)
        assert Counter(split.values()) == {"train": 14, "test": 4, "validation": 2}
        assert split == split_of_repositories(names[::-1], 0) != split_of_repositories(names, 1)
        assert set(split_of_repositories(names[:3], 0).values()) == {"train", "validation", "test"}
        with pytest.raises(UserError, match="--split-by task"):
            split_of_repositories(names[:2], 0)

    @settings(max_examples=20)
    @given(st.integers(3, 60))
    def test_by_task(self, count: int) -> None:
        questions = [Question(str(number), "r", "why?", ("a",), "docs") for number in range(count)]
        split = split_by_task(questions, 0)
        assert sorted(each.id for own in split.values() for each in own) == sorted(map(str, range(count)))
        assert all(split.values())
        for name, share in {"train": 0.7, "validation": 0.2, "test": 0.1}.items():
            assert abs(len(split[name]) - count * share) < 1.5, name

    def test_too_few_tasks(self) -> None:
        with pytest.raises(UserError, match="2 questions cannot be split"):
            split_by_task([Question(str(n), "r", "why?", ("a",), "docs") for n in range(2)], 0)


def test_words_that_questions_are_judged_by() -> None:
    assert words("where is recipe tax computed?") == ["recip", "tax", "comput"]

"""Questions of reasoning-gym: how they are written down, what answers are worth, and learning to answer them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.wings.reasoning_gym.questions import FIRST_SEED, KEY, dataset, prompt_of, rows, score
from reflectrl.wings.reasoning_gym.score import ReasoningGymScore

if importlib.util.find_spec("reasoning_gym") is None:
    pytest.skip("the extra reasoning-gym", allow_module_level=True)

SHORT = '{"max_word_len": 4}'
ORIGIN = {"dataset": "gcd", "settings": {}, "seed": 3, "index": 0}


class Answer:
    """What a component is given, as far as this one looks at it."""

    def __init__(self, prompt, completion, meta):
        self.id, self.prompt, self.completion, self.meta = "a", prompt, completion, meta


def read(folder, names="*"):
    """The rows of files, by the stem of their names."""
    paths = Path(folder).glob(f"{names}.jsonl")
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in paths}


@pytest.fixture
def questions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ["--train", "24", "--validation", "6", "--test", "6"]
    assert main(["data", "reasoning-gym", "--dataset", "spell_backward", "gcd", *sizes]) == 0
    assert "reasoning-gym/train.jsonl: 48 questions" in capsys.readouterr().out
    return read("reasoning-gym")


def test_questions_are_mixed_and_none_is_in_two_splits(questions):
    assert {split: len(found) for split, found in questions.items()} == {"train": 48, "validation": 12, "test": 12}
    prompts = [row["prompt"] for found in questions.values() for row in found]
    assert len(set(prompts)) == len(prompts)
    assert [row["meta"][KEY]["dataset"] for row in questions["test"]][:4] == ["spell_backward", "gcd"] * 2


def test_the_packages_own_answers_are_worth_one_and_wrong_ones_less(questions):
    component = ReasoningGymScore()
    for row in questions["test"]:
        right = Answer(row["prompt"], row["completion"], row["meta"])
        wrong = Answer(row["prompt"], " no idea", row["meta"])
        assert component.score([right, wrong]) == [1.0, pytest.approx(0, abs=0.2)]


def test_an_answer_may_stand_behind_a_mark():
    entry = dataset("gcd", {}, 3)[0]
    thought = Answer(prompt_of(entry), f" 7? No. #### {entry['answer']}", {KEY: ORIGIN})
    assert ReasoningGymScore(after="####").score([thought]) == [1.0] != ReasoningGymScore().score([thought])


@given(st.text(max_size=40))
def test_whatever_is_written_is_worth_something_between_0_and_1(answer):
    for name in ("gcd", "word_sorting", "chain_sum", "letter_counting"):
        prompt = prompt_of(dataset(name, {}, 1)[0])
        origin = {"dataset": name, "settings": {}, "seed": 1, "index": 0}
        assert 0 <= score(origin, prompt, answer) <= 1


def test_a_question_that_another_version_made_is_refused():
    with pytest.raises(UserError, match="a different one in the installed version"):
        score(ORIGIN, "What is 2 + 2?\nAnswer:", "4")


@pytest.mark.parametrize("meta", [{}, {KEY: 3}, {KEY: {"dataset": "gcd"}}])
def test_a_sample_that_names_no_question_is_refused(meta):
    with pytest.raises(UserError, match="reward reasoning_gym"):
        ReasoningGymScore().score([Answer("?", "!", meta)])


def test_nothing_that_a_model_wrote_is_run():
    for name in ("spiral_matrix", "n_queens", "countdown", "simple_integration"):
        with pytest.raises(UserError, match="scores answers by running them as code"):
            dataset(name, {}, 0)


def test_too_few_different_questions_are_one_line():
    with pytest.raises(UserError, match="different questions for test, not 500; ask for fewer"):
        list(rows("leg_counting", {"min_animals": 1, "max_animals": 1, "max_instances": 2}, "test", 500, set()))


def test_splits_begin_far_from_each_other():
    assert FIRST_SEED["validation"] - FIRST_SEED["train"] > 10 * 10**6 < FIRST_SEED["test"] - FIRST_SEED["validation"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "spel_backward"], "did you mean 'spell_backward'"),
        (["--settings", "{"], "--settings is not valid JSON"),
        (["--settings", "3"], "a JSON object"),
        (["--settings", '{"word": 3}'], "unexpected keyword argument 'word'"),
        (["--train", "0"], "at least 1"),
        (["--tain", "5"], "--train"),
    ],
)
def test_bad_options_are_refused_in_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "reasoning-gym", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and not list(tmp_path.iterdir())


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"pip install '\.\[reasoning-gym\]'"):
        ReasoningGymScore()


def test_the_recipe_learns_token_by_token_from_the_verdicts(tmp_path, monkeypatch, capsys):
    """From the questions to the table of arms, with a model that is too small to learn much."""
    monkeypatch.chdir(tmp_path)
    sizes = ["--train", "16", "--validation", "4", "--test", "4"]
    assert main(["data", "reasoning-gym", "--settings", SHORT, *sizes]) == 0
    model = ["--model.layers", "1", "--model.width", "16", "--model.heads", "2"]
    learn = ["--sft.eval-every", "2", "--offline.reference-steps", "2", "--rl.updates", "2", "--rl.episodes", "8"]
    assert main(["run", "reasoning-gym", *model, *learn, "--rl.eval-every", "1"]) == 0
    results = json.loads(Path("runs/reasoning-gym/results.json").read_text())
    means = {row["arm"]: row["reward"] for row in results["rows"] if row["arm"] != "ppo"}
    assert means["data"] == 1.0 and 0 <= means["reference"] < 1
    written = [row for rows in read("runs/reasoning-gym/completions", "ppo*").values() for row in rows]
    assert written and all(KEY in row["meta"] for row in written)

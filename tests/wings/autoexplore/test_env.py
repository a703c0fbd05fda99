"""AutoExplore as an environment: tasks, both action sets, costs, noise, expert, and what it says about bad input."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.envs import make
from reflectrl.core.types import Task, UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.autoexplore.env import AutoExploreEnv
from tests.wings.autoexplore.shelf import make_library

H = 15


@pytest.fixture
def library(tmp_path: Path) -> str:
    return str(make_library(tmp_path / "library"))


def play(env: AutoExploreEnv, task: Task, *actions: str) -> list[tuple[float, bool, dict[str, Any]]]:
    """Reset, carry out actions by their texts, and return rewards, ends and infos."""
    env.reset(seed=0, options={"task": task})
    found = []
    for action in actions:
        _, reward, terminated, truncated, info = env.step(list(env.legal_actions()).index(action))
        found.append((reward, terminated or truncated, info))
    return found


def task(env: AutoExploreEnv, split: str, number: int = 0) -> Task:
    return env.tasks(split)[number]


@pytest.mark.parametrize("actions", ["paper", "extended"])
@pytest.mark.parametrize("page", [0, 2])
def test_it_keeps_an_environments_promises(library: str, actions: Any, page: int) -> None:
    check_text_env(partial(AutoExploreEnv, library=library, actions=actions, page=page, leave_out=0.3))


# ---- the paper's actions -------------------------------------------------------------------------------------------


def test_the_papers_commands_are_those_of_the_folder(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper")
    play(env, task(env, "test"))
    assert env.legal_actions() == ("cd zoo", "cat README.md", "id README.md")
    play(env, task(env, "test"), "cd zoo")
    assert set(env.legal_actions()) == {"cd ..", *(f"{v} {f}.py" for v in ("cat", "id") for f in ("cages", "feeding"))}


def test_a_question_may_name_its_file(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper", easy=True)
    one = task(env, "test")
    play(env, one)
    assert f"Question: Find {one.payload['gold'][0]}" in env.observe().text


def test_the_first_step_alone_may_be_the_task(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper", first_step=True)
    one = task(env, "test")
    play(env, one)
    right = env.legal_actions()[env.teacher.expert_action(env)]
    wrong = next(action for action in env.legal_actions() if action != right)
    for action, pay in ((right, (H - 1) / H), (wrong, (-H - 1) / H)):
        [(reward, done, info)] = play(env, one, action)
        assert (reward, done, info["success"]) == (pytest.approx(pay), True, action == right)


def test_a_file_that_was_read_is_not_offered_for_reading_again(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper")
    play(env, task(env, "test"), "cat README.md")
    assert env.legal_actions() == ("cd zoo", "id README.md")
    assert "All about the animals." in env.state() and "> cat README.md" in env.history()


def test_costs_are_the_papers_divided_by_the_horizon(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper")
    (first, _, _), (right, over, info) = play(env, task(env, "test"), "cd zoo", "id cages.py")
    assert (first, right, over, info["success"]) == (-1 / H, (H - 1) / H, True, True)
    (wrong, over, info) = play(env, task(env, "test"), "id README.md")[0]
    assert (wrong, over, info["success"], info["events"]) == ((-H - 1) / H, True, False, ["wrong"])


def test_no_answer_within_the_horizon_costs_as_much_as_a_wrong_one(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper", horizon=2)
    (_, _, _), (last, over, info) = play(env, task(env, "test"), "cd zoo", "cd ..")
    assert (last, over, info["success"]) == ((-1 - 2) / 2, True, False)


def test_reading_what_has_gone_is_an_error_and_costs_two_more(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper")
    env.reset(seed=0, options={"task": task(env, "test")})
    (Path(library) / "repos/zoo/README.md").write_text("changed underneath", encoding="utf-8")
    _, reward, _, _, info = env.step(list(env.legal_actions()).index("cat README.md"))
    assert reward == -3 / H and info["events"] == ["error"] and "Error: it has changed" in env.state()


def test_every_entry_of_a_large_folder_can_be_reached(tmp_path: Path) -> None:
    library = make_library(tmp_path / "library")
    for number in range(300):
        (library / f"repos/zoo/zoo/animal{number:03}.py").write_text("'''One of the animals.'''\n", encoding="utf-8")
    env = AutoExploreEnv(str(library), actions="paper", page=50)
    play(env, task(env, "test"), "cd zoo")
    seen = set(env.legal_actions())
    while "next" in env.legal_actions():
        assert len(env.legal_actions()) <= 2 * 50 + 3
        env.step(list(env.legal_actions()).index("next"))
        seen |= set(env.legal_actions())
    assert {f"id animal{number:03}.py" for number in range(300)} <= seen


def test_noise_leaves_out_what_is_not_on_the_way_while_training_only(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper", leave_out=1.0)
    play(env, task(env, "train"), "cd shop", "cd pay")
    assert env.legal_actions() == ("cd ..", "cat cards.py", "id cards.py")
    play(env, task(env, "test"))
    assert "id README.md" in env.legal_actions()


# ---- the extended actions ------------------------------------------------------------------------------------------


def test_what_a_search_finds_gets_labels_that_stay(library: str) -> None:
    env = AutoExploreEnv(library)
    play(env, task(env, "test"), "search")
    found = env.history().splitlines()[2:]
    assert found == ["code 1: zoo/cages.py"] and "id code 1" in env.legal_actions()
    play(env, task(env, "test"), "search", "ls", "cd zoo")
    assert "code 1: cages.py" in env.history().splitlines()[-1]


def test_looks_are_offered_once_and_show_what_they_say(library: str) -> None:
    env = AutoExploreEnv(library)
    play(env, task(env, "test"), "search", "outline code 1", "head code 1", "cat code 1")
    assert "function unlock(cage): Open a cage with its key" in env.history()
    assert env.history().count('"""Cages and their keys."""') == 2
    assert (
        not {"outline code 1", "head code 1", "cat code 1"} & set(env.legal_actions())
        and "id code 1" in env.legal_actions()
    )


def test_more_and_single_words_find_what_one_page_does_not(library: str) -> None:
    env = AutoExploreEnv(library, hits=1)
    play(env, task(env, "train"), "search")
    assert "more" in env.legal_actions() and "id code 2" not in env.legal_actions()
    play(env, task(env, "train"), "search", "more", "search money")
    assert "> search money" in env.history() and "id code 2" in env.legal_actions()
    assert "search money" not in env.legal_actions()


@pytest.mark.parametrize("actions", ["paper", "extended"])
@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_expert_always_arrives_from_anywhere(library: str, actions: Any, page: int, split: str) -> None:
    env = AutoExploreEnv(library, actions=actions, page=page, hits=1, horizon=60)
    for one in env.tasks(split):
        env.reset(seed=1, options={"task": one})
        for _ in range(12):
            moves = [n for n, action in enumerate(env.legal_actions()) if not action.startswith("id ")]
            if moves:
                env.step(moves[int(env.np_random.integers(len(moves)))])
        while not env.done:
            expected = list(env.legal_actions())[env.teacher.expert_action(env)]
            assert env.teacher.analyse(env).endswith(f"Next: {expected}") and "\n" not in env.teacher.analyse(env)
            env.step(env.teacher.expert_action(env))
        assert env.success


def test_the_baseline_takes_the_first_hit(library: str) -> None:
    env = AutoExploreEnv(library)
    env.reset(seed=0, options={"task": task(env, "test")})
    env.step(env.teacher.baseline_action(env))
    assert list(env.legal_actions())[env.teacher.baseline_action(env)] == "id code 1"


def test_the_baseline_goes_through_folders_where_there_is_nothing_to_search_for(library: str) -> None:
    env = AutoExploreEnv(library)
    (Path(library) / "repos/zoo/README.md").unlink()
    payload = {"question": "What is it about?", "repo": "zoo", "gold": ["zoo/cages.py"], "source": "user"}
    env.reset(seed=0, options={"task": Task("mine", "autoexplore", payload)})
    while not env.done:
        env.step(env.teacher.baseline_action(env))
    assert env.success


def test_a_reflection_gives_reasons_that_can_be_seen(library: str) -> None:
    env = AutoExploreEnv(library)
    play(env, task(env, "test"), "search")
    assert env.teacher.analyse(env) == "The answer is in code. It comes first there. Next: id code 1"
    play(env, task(env, "test"), "ls", "cat docs 1")
    assert "is about" in env.teacher.analyse(env) and "not this" in env.teacher.analyse(env)


# ---- tasks ---------------------------------------------------------------------------------------------------------


def test_stages_are_depths_of_the_file(library: str) -> None:
    env = AutoExploreEnv(library)
    assert [len(env.tasks("train", stage)) for stage in env.stages] == [2, 4, 4]
    assert AutoExploreEnv(library, group_by="depth").group(task(env, "train")) == "depth-2"
    assert env.group(task(env, "train")) == "docstring"


def test_a_question_nobody_knows_the_answer_to_can_be_played(library: str) -> None:
    env = AutoExploreEnv(library)
    payload = {"question": "Which animal?", "repo": "zoo", "gold": [], "source": "user"}
    play(env, Task("mine", "autoexplore", payload), "search")
    with pytest.raises(UserError, match="has no known answer"):
        env.teacher.expert_action(env)


def test_it_pickles_in_the_middle_of_an_episode(library: str) -> None:
    env = AutoExploreEnv(library)
    play(env, task(env, "test"), "search")
    copy = pickle.loads(pickle.dumps(env))  # noqa: S301  (made here)
    assert copy.render() == env.render() and copy.legal_actions() == env.legal_actions()


def test_bad_input_is_refused_in_one_line(library: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no library"):
        AutoExploreEnv(str(tmp_path / "nothing")).tasks("train")
    with pytest.raises(UserError, match="unknown split 'tset' .did you mean 'test'"):
        AutoExploreEnv(library).tasks("tset")
    with pytest.raises(UserError, match="unknown stage"):
        AutoExploreEnv(library).tasks("train", "depth-9")
    with pytest.raises(UserError, match="no questions of these"):
        AutoExploreEnv(library, sources=("commit",)).tasks("train")
    with pytest.raises(UserError, match="horizon and hits"):
        AutoExploreEnv(library, horizon=0)
    with pytest.raises(UserError, match="actions"):
        make({"name": "autoexplore", "actions": "papre"})


def test_the_expert_looks_into_a_file_before_it_names_it(library: str) -> None:
    env = AutoExploreEnv(library, actions="paper")
    for each in env.tasks("test"):
        env.reset(options={"task": each})
        taken, over = list[str](), False
        while not over:
            action = env.teacher.expert_action(env)
            taken.append(env.legal_actions()[action])
            over = env.step(action)[2]
        name = taken[-1].removeprefix("id ")
        assert taken[-2:] == [f"cat {name}", f"id {name}"]

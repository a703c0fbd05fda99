"""Edits: the request, the check, what the expert does, and tasks of which no two splits share a pair."""

import pytest

from reflectrl.core.envs import make
from reflectrl.core.types import UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.autoexplore.session.env import EditsEnv
from reflectrl.wings.autoexplore.session.making import FORMATS, SETTINGS


def begun(number: int = 0) -> EditsEnv:
    env = EditsEnv()
    env.reset(options={"task": env.tasks("test")[number]})
    return env


def act(env: EditsEnv, action: str) -> tuple[float, bool]:
    _, reward, terminated, *_ = env.step(list(env.legal_actions()).index(action))
    return float(reward), terminated


def test_every_promise_is_kept() -> None:
    assert check_text_env(make({"name": "edits", "train": 30, "validation": 5, "test": 5})) == ["expert", "analyst"]


def test_the_expert_reads_sets_and_checks_in_every_format() -> None:
    formats = set()
    for number in range(60):
        env = begun(number)
        formats.add(env.project.path.rpartition(".")[2])
        before = dict(env.project.texts)
        actions = []
        while not env.done:
            actions.append(env.legal_actions()[env.teacher.expert_action(env)])
            act(env, actions[-1])
        assert env.success
        assert actions == [f"read {env.project.path}", f"set {env.key()} {env.project.new}", "check"]
        assert {path: env.overlay.repository.original(path, 10**6)[0].decode() for path in before} == before  # type: ignore[index]
    assert formats == set(FORMATS)


def test_a_wrong_change_fails_the_check_until_it_is_undone() -> None:
    env = begun()
    act(env, f"read {env.project.path}")
    wrong = next(a for a in env.legal_actions() if a.startswith("set") and not a.startswith(f"set {env.key()} "))
    act(env, wrong)
    assert act(env, "check") == (-1 / 8, False) and env.history().endswith("> check\nfailed\n")
    assert env.legal_actions()[env.teacher.expert_action(env)] == "undo"
    act(env, "undo")
    act(env, f"set {env.key()} {env.project.new}")
    assert act(env, "check") == (7 / 8, True) and env.success


def test_the_copy_among_the_tests_is_not_the_file_to_change() -> None:
    env = begun()
    copy = next(path for path in env.overlay.files if path.startswith("tests/"))
    act(env, f"read {copy}")
    act(env, f"set {env.key()} {env.project.new}")
    assert act(env, "check") == (-1 / 8, False)


def test_no_request_names_its_setting() -> None:
    for key, ways in SETTINGS.items():
        assert all(word not in way.split() for way in ways for word in (key, key.upper()) if key != "port")


def test_no_pair_of_service_and_setting_is_in_two_splits() -> None:
    env = EditsEnv()
    asked = [
        {(t.payload["service"], t.payload["key"]) for t in env.tasks(split)}
        for split in ("train", "validation", "test")
    ]
    assert [len(pairs) for pairs in asked] == [112, 16, 32]
    assert len(set.union(*asked)) == 160


@pytest.mark.parametrize("arguments", [{"train": 0}, {"horizon": 0}])
def test_sizes_have_to_be_positive(arguments: dict[str, int]) -> None:
    with pytest.raises(UserError, match="positive"):
        EditsEnv(**arguments)

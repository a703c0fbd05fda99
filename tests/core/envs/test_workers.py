"""Environments in worker processes: the same episodes, side by side, and an end to everything that was started."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from corridor import CorridorEnv

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.episodes import to_line
from reflectrl.core.players import AnalystPlayer, ExpertPlayer, RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Task, UserError

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def worlds() -> Iterator[Any]:
    """The module of strange environments, where workers find it too."""
    sys.path.insert(0, str(HERE))
    yield importlib.import_module("strange_worlds")
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def dice(worlds: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvPool]:
    """A pool of two workers, for the tests that leave it alive."""
    with EnvPool(worlds.Dice, workers=2) as pool:
        yield pool


def lines(episodes: Iterable[Episode]) -> list[str]:
    return [to_line(episode) for episode in sorted(episodes, key=lambda episode: episode.seed)]


def jobs_of(env: TextEnv, count: int) -> list[Job]:
    tasks = env.tasks("train")
    return [Job(tasks[i % len(tasks)], i) for i in range(count)]


# ---- the same episodes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "workers"),
    [
        ({"name": "corridor"}, 1),
        ({"name": "corridor", "slippery": True}, 2),
        ({"name": "strange_worlds:Dice"}, 3),
    ],
)
def test_episodes_do_not_depend_on_where_environments_live(worlds: Any, section: Any, workers: int) -> None:
    make_env = partial(make, section)
    jobs = jobs_of(make_env(), 20)
    reflector = None if "Dice" in section["name"] else AnalystPlayer()

    def play(envs: Any, batch: int) -> list[str]:
        return lines(rollout(jobs, envs, RandomPlayer(), reflector, batch, reflect_probability=0.5))

    here = play(make_env, 1)
    with EnvPool(make_env, workers) as pool:
        assert play(pool, 7) == play(pool, 64) == here
    with EnvPool(make_env) as pool:
        assert play(pool, 7) == play(pool, 3) == here
    assert len(set(here)) == 20


def test_a_pool_makes_each_environment_once() -> None:
    made: list[TextEnv] = []

    def kept() -> TextEnv:
        made.append(CorridorEnv())
        return made[-1]

    with EnvPool(kept) as pool:
        for batch in (2, 5, 3):
            assert len(list(rollout(jobs_of(CorridorEnv(), 6), pool, ExpertPlayer(), batch=batch))) == 6
        assert len(made) == 5
        assert pool() not in made[:-1] and len(made) == 6


def test_two_rollouts_may_share_a_pool_and_one_may_be_abandoned(worlds: Any, dice: EnvPool) -> None:
    jobs = jobs_of(worlds.Dice(), 12)
    expected = lines(rollout(jobs, worlds.Dice, RandomPlayer()))
    abandoned = rollout(jobs, dice, RandomPlayer(), batch=5)
    next(abandoned)
    one, other = (rollout(jobs, dice, RandomPlayer(), batch=4) for _ in range(2))
    both = list(zip(one, other, strict=True))
    abandoned.close()  # type: ignore[attr-defined]
    assert lines(first for first, _ in both) == lines(second for _, second in both) == expected
    assert lines(rollout(jobs, dice, RandomPlayer())) == expected


# ---- side by side --------------------------------------------------------------------------------------------------


def test_environments_of_different_workers_begin_and_step_at_the_same_time(worlds: Any, tmp_path: Path) -> None:
    jobs = [Job(Task(name, "meeting", {"length": 3}), 0) for name in "ab"]
    with EnvPool(partial(worlds.Meeting, str(tmp_path)), workers=2) as pool:
        assert len(list(rollout(jobs, pool, RandomPlayer()))) == 2


def test_environments_are_dealt_out_evenly_and_live_elsewhere(dice: EnvPool) -> None:
    with dice.lend() as a, dice.lend() as b, dice.lend() as c, dice.lend() as d:
        homes = [env.process() for env in (a, b, c, d)]  # type: ignore[attr-defined]
        assert not any(env.imported("torch") for env in (a, b))  # type: ignore[attr-defined]
    assert len(set(homes)) == 2 and os.getpid() not in homes
    assert [homes.count(home) for home in homes] == [2, 2, 2, 2]


# ---- the stand-in --------------------------------------------------------------------------------------------------


def test_a_stand_in_has_all_that_the_environment_has() -> None:
    real = CorridorEnv()
    task = real.tasks("train")[3]
    with EnvPool(CorridorEnv, workers=1) as pool, pool.lend() as env:
        for one in (real, env):
            one.reset(seed=1, options={"task": task})
        point = env.save()
        while not real.done:
            assert (env.teacher.expert_action(env), env.teacher.analyse(env)) == (
                real.teacher.expert_action(real),
                real.teacher.analyse(real),
            )
            assert (env.render(), env.observe(), env.task) == (real.render(), real.observe(), task)
            assert env.step(real.teacher.expert_action(real)) == real.step(real.teacher.expert_action(real))
        assert env.done and env.success and env.stages == CorridorEnv.stages and env.horizon == 20
        assert env.tasks("test", stage="key") == real.tasks("test", "key")
        env.restore(point)
        assert not env.done
        with pytest.raises(ValueError, match=r"action 9 is not in"):
            env.step(9)
        [episode] = rollout([Job(task, 0)], pool, ExpertPlayer())
        assert episode.success


def test_what_a_stand_in_cannot_do_is_told_as_in_process(worlds: Any, dice: EnvPool) -> None:
    with dice.lend() as env:
        env.reset(options={"task": worlds.Dice().tasks("train")[0]})
        with pytest.raises(NotImplementedError) as missing:
            env.teacher.expert_action(env)
        assert str(missing.value) == "Dice has no expert"
        with pytest.raises(KeyError, match="bug") as bug:
            env.crash()  # type: ignore[attr-defined]
        assert "strange_worlds.py" in bug.value.__notes__[0]
        assert not hasattr(env, "colour") and not hasattr(env, "_task_of_mine")
        with pytest.raises((AttributeError, RuntimeError, TypeError)):
            env.unsendable()  # type: ignore[attr-defined]
        assert env.horizon == 5, "it answers on"
    with pytest.raises(UserError, match=r"^Dice has no expert$"):
        list(rollout(jobs_of(worlds.Dice(), 3), dice, ExpertPlayer()))


# ---- environments that fail ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["begin", "step 2"])
@pytest.mark.parametrize("fault", ["raise", "mistake", "exit", "own", "unpicklable", "unreadable"])
def test_an_exception_reads_the_same_from_a_worker(worlds: Any, dice: EnvPool, where: str, fault: str) -> None:
    jobs = [Job(Task("calm", "dice", {"length": 2}), 0), Job(Task("wild", "dice", {"length": 4, where: fault}), 1)]
    told = []
    for envs in (worlds.Dice, dice):
        found: list[str] = []
        with pytest.raises(UserError) as caught:
            found.extend(episode.task.id for episode in rollout(jobs, envs, RandomPlayer()))
        told.append((str(caught.value), found))
    about = "environment Dice raised on task 'wild': "
    whole = {
        "raise": f"{about}RuntimeError: the world is on fire",
        "mistake": "no such folder",
        "exit": f"{about}SystemExit: 3",
        "own": f"{about}Doom: it ends",
        "unpicklable": f"{about}Unpicklable: no way out",
        "unreadable": f"{about}Unreadable: a, b",
    }
    ended = ["calm"] if where == "step 2" else []
    assert told == [(whole[fault], ended)] * 2


@pytest.mark.parametrize(
    ("fault", "where", "how"),
    [("leave", "begin", r"exit code 3"), ("kill", "step 2", r"signal 9, out of memory\?")],
)
def test_a_worker_that_dies_is_told_with_the_task(worlds: Any, fault: str, where: str, how: str) -> None:
    calm = [Job(Task(f"calm-{i}", "dice", {"length": 2}), i) for i in range(2)]
    wild = Job(Task("wild", "dice", {"length": 4, where: fault}), 5)
    after = Job(Task("after", "dice", {"length": 4}), 6)
    found: list[str] = []
    with EnvPool(worlds.Dice, workers=2) as pool:
        with pytest.raises(UserError, match=rf"^environment 'dice': .* ended on task 'wild' \({how}\)$"):
            found.extend(episode.task.id for episode in rollout([*calm, wild, after], pool, RandomPlayer()))
        assert found == ([] if where == "begin" else ["calm-0", "calm-1"])
        with pytest.raises(UserError, match=r"worker process ended"):
            list(rollout([*calm], pool, RandomPlayer()))


def test_ctrl_c_of_an_environment_stays_one(worlds: Any, dice: EnvPool) -> None:
    for envs in (worlds.Dice, dice):
        with pytest.raises(KeyboardInterrupt):
            list(rollout([Job(Task("wild", "dice", {"length": 4, "begin": "interrupt"}), 1)], envs, RandomPlayer()))


@pytest.mark.parametrize(
    ("method", "error", "told"),
    [
        ("unsendable", (AttributeError, RuntimeError, TypeError), "."),
        ("unreadable", UserError, r"^the answer of an environment cannot be read: .*nothing is left of it"),
        ("end_of_file", EOFError, "the file ended"),
        ("leave_quietly", UserError, r"^a worker process raised SystemExit: 4$"),
    ],
)
def test_an_answer_that_cannot_travel_is_told_and_the_worker_answers_on(
    dice: EnvPool, method: str, error: Any, told: str
) -> None:
    with dice.lend() as env:
        with pytest.raises(error, match=told):
            getattr(env, method)()
        assert env.horizon == 5


def test_a_call_that_cannot_travel_is_told_and_the_worker_answers_on(worlds: Any, dice: EnvPool) -> None:
    with pytest.raises(UserError, match=r"^a call cannot be sent to a worker process: "):
        list(rollout([Job(Task("wild", "dice", {"length": 1, "odd": lambda: None}), 0)], dice, RandomPlayer()))
    assert len(list(rollout(jobs_of(worlds.Dice(), 3), dice, RandomPlayer()))) == 3


def test_a_worker_that_dies_while_a_child_of_it_holds_its_pipe_is_told(worlds: Any) -> None:
    """No end of file comes then; it was waited for without end."""
    jobs = [Job(Task("wild", "dice", {"length": 4, "step 2": "orphan"}), 0)]
    start = time.monotonic()
    with (
        EnvPool(worlds.Dice, workers=1) as pool,
        pytest.raises(UserError, match=r"ended on task 'wild' \(exit code 5\)$"),
    ):
        list(rollout(jobs, pool, RandomPlayer()))
    assert time.monotonic() - start < 60, "it waited for the child"


def test_what_cannot_be_made_in_a_worker_is_told(worlds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^worker processes need a picklable function .*lambda"):
        EnvPool(lambda: worlds.Dice(), workers=1)
    nowhere = types.ModuleType("nowhere")
    nowhere.Lost = type("Lost", (worlds.Dice,), {"__module__": "nowhere"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nowhere", nowhere)
    unknown: Callable[[], TextEnv] = partial(make, {"name": "corridor", "horizn": 3})
    for make_env, error, told in [
        (nowhere.Lost, UserError, r"^environments cannot be made in a worker process: .*No module named 'nowhere'"),
        (unknown, UserError, r"takes no 'horizn'"),
        (partial(worlds.unreadable, "a map"), OSError, r"cannot read a map"),
    ]:
        with EnvPool(make_env, workers=1) as pool, pytest.raises(error, match=told):
            list(rollout([Job(Task("any", "dice", {"length": 1}), 0)], pool, RandomPlayer()))


# ---- the end -------------------------------------------------------------------------------------------------------


def test_closing_closes_environments_and_ends_workers(worlds: Any, tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    with EnvPool(partial(worlds.Dice, str(tmp_path)), workers=2) as pool:
        episodes = rollout(jobs_of(worlds.Dice(), 8), pool, RandomPlayer(), batch=4)
        next(episodes)
        assert len(set(multiprocessing.active_children()) - before) == 2
    assert set(multiprocessing.active_children()) <= before
    assert len(list(tmp_path.glob("closed-*"))) == 4
    with pytest.raises(RuntimeError, match="the pool of environments is closed"):
        list(rollout(jobs_of(worlds.Dice(), 1), pool, RandomPlayer()))


SCRIPT = """
import sys
from functools import partial
from reflectrl.core.envs import make
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Task

if __name__ == "__main__":
    sys.path.append("")
    jobs = [Job(Task(str(i), "strange", {"length": 3}), i) for i in range(4)]
    pool = EnvPool(partial(make, {"name": f"strange_worlds:{sys.argv[1]}", "folder": "."}), workers=2)
    try:
        for episode in rollout(jobs, pool, RandomPlayer()):
            pass
    except KeyboardInterrupt:
        pool.close()
        sys.exit(130)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start the script in a folder that also holds the plug-in, and in a process group of its own."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "strange_worlds.py").write_text((HERE / "strange_worlds.py").read_text(encoding="utf-8"))
    started = []

    def run(kind: str) -> subprocess.Popen[str]:
        words = [sys.executable, "elsewhere/script.py", kind]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
        return started[-1]

    yield run
    for process in started:
        if not group_is_empty(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)


def group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for(condition: Callable[[], bool], seconds: float = 40) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_pool_that_nobody_closes_ends_with_its_process(start: Any, tmp_path: Path) -> None:
    """It also shows that workers find plug-ins of the current folder."""
    process = start("Dice")
    assert process.communicate(timeout=40) == ("", "")
    assert process.returncode == 0 and wait_for(lambda: group_is_empty(process.pid))
    assert len(list(tmp_path.glob("closed-*"))) == 4


def test_workers_do_not_outlive_their_parent(start: Any, tmp_path: Path) -> None:
    """Not even in the middle of a step without end; and they say nothing when the whole group is interrupted."""
    interrupted, killed = start("Stuck"), start("Stuck")
    assert wait_for(lambda: len(list(tmp_path.glob("stuck-*"))) == 4)
    os.killpg(interrupted.pid, signal.SIGINT)
    killed.kill()
    for process, code in ((interrupted, 130), (killed, -signal.SIGKILL)):
        assert (process.communicate(timeout=40), process.returncode) == (("", ""), code)
        assert wait_for(lambda process=process: group_is_empty(process.pid)), "workers outlived their parent"  # type: ignore[misc]

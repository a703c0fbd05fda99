"""`reflectrl certify`: each fault is named, and sound environments get a certificate."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import planted
from benchmarks.certified import expected
from reflectrl.cli import main
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.examples.guess_number import GuessEnv
from reflectrl.examples.key_door import KeyDoorEnv
from reflectrl.learn.reward_check import signal_of
from reflectrl.tools.certify.certify import luck_in_steps
from reflectrl.tools.certify.courses import Walk
from reflectrl.tools.certify.degenerate import constant_players, played
from reflectrl.tools.certify.fingerprint import Fingerprints
from reflectrl.tools.certify.graph import StateGraph
from reflectrl.tools.certify.gym_id import environment_of, is_gym_id
from reflectrl.tools.certify.headroom import check_headroom
from reflectrl.tools.certify.hidden import check_text
from reflectrl.tools.certify.learnable import check_learning
from reflectrl.tools.certify.repeatable import check_repeatable
from reflectrl.tools.certify.reward import check_reward
from reflectrl.tools.certify.shown import badge, show
from reflectrl.tools.certify.splits import check_splits
from reflectrl.tools.certify.verdict import CHECKS, Certificate, Finding
from reflectrl.tools.certify.wins import explored, find_wins, sample_of
from tests.tools.certify.conftest import random_episodes

NEVER = 1e9
"""Deadline that does not come."""
FEW = 6
"""Number of tasks that these tests explore."""


def graphs_of(kind: Callable[[], TextEnv]) -> list[StateGraph]:
    env = kind()
    return explored(kind, sample_of(env, env.tasks("train"), FEW), NEVER)


class TestGraph:
    def test_a_complete_graph_has_the_shortest_win(self) -> None:
        env = KeyDoorEnv(length=6)
        [task] = [task for task in env.tasks("train") if task.payload["cell"] == 5]
        graph = StateGraph(env, task, 0)
        graph.explore(1000, 10_000, NEVER)
        assert graph.is_complete and graph.distances()[0] == 4 + 1 + 5 + 1
        way, earned = graph.shortest_win() or ((), 0)
        assert way == ("left",) * 4 + ("take",) + ("right",) * 5 + ("open",) and earned == 1

    def test_a_win_beyond_the_horizon_is_none(self) -> None:
        env = KeyDoorEnv(length=6, horizon=10)
        graph = StateGraph(env, env.tasks("train")[0], 0)
        graph.explore(1000, 10_000, NEVER)
        assert graph.is_complete and graph.shortest_win() is None

    def test_what_was_not_tried_counts_as_hope_only(self) -> None:
        graph = StateGraph(KeyDoorEnv(), KeyDoorEnv().tasks("train")[0], 0)
        assert graph.can_win({}) and not graph.can_win({}, hopeful=False)

    def test_states_that_the_text_mixes_up_are_told_apart(self) -> None:
        env, prints = planted.NoKey(), Fingerprints()
        env.reset(options={"task": env.tasks("train")[0]})
        before = prints(env), env.state()
        env.has_key = True
        assert env.state() == before[1] and prints(env) != before[0]

    def test_large_tables_are_read_only_at_first(self) -> None:
        env, prints = planted.Parcel(), Fingerprints()
        env.reset(options={"task": env.tasks("train")[0]})
        marks = {prints(env) for _ in range(100)}
        assert len(marks) == 1
        env.room = "somewhere else"
        assert prints(env) not in marks


class TestText:
    @pytest.mark.parametrize("kind", [planted.NoKey, planted.NoGoal, planted.BlindLock])
    def test_text_that_hides_what_matters_is_a_fault(self, kind: type[TextEnv]) -> None:
        finding = check_text(graphs_of(kind), False, NEVER)
        assert finding.state == "fault" and "show the same text" in finding.words

    @pytest.mark.parametrize(
        "kind", [planted.Corridor, planted.Lamps, partial(GuessEnv, span=7, train=40, validation=10, test=10)]
    )
    def test_text_by_which_it_can_be_found_out_is_none(self, kind: Callable[[], TextEnv]) -> None:
        assert check_text(graphs_of(kind), False, NEVER).state == "ok"


class TestSplits:
    @pytest.mark.parametrize("kind", [planted.FewWorlds, planted.CopiedTasks])
    def test_training_tasks_under_other_names_are_a_fault(self, kind: type[TextEnv]) -> None:
        assert check_splits(kind(), False, NEVER).state == "fault"

    def test_tasks_that_begin_alike_and_end_otherwise_are_none(self) -> None:
        assert check_splits(planted.Lamps(), False, NEVER).state in ("ok", "note")


class TestReward:
    @pytest.mark.parametrize("fault", [planted.PaidToLive, planted.TakeAndDrop, planted.SurrenderPays])
    def test_play_that_earns_as_much_as_a_win_is_a_fault(self, fault: type[TextEnv]) -> None:
        assert _reward(fault).state == "fault"

    def test_a_win_that_pays_is_none(self) -> None:
        finding = _reward(planted.Corridor)
        assert finding.state == "ok" and finding.figures["win"] > 1 > finding.figures["best_player"]


def _reward(kind: type[TextEnv]) -> Finding:
    env, graphs, episodes = kind(), graphs_of(kind), random_episodes(kind)
    wins = find_wins(kind, [graph.task for graph in graphs], graphs, NEVER)
    plays = played(env, env.tasks("train")[:5], constant_players(episodes), NEVER)
    return check_reward(env, wins, graphs, plays, episodes, signal_of(episodes), NEVER)


class TestHeadroom:
    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            (planted.FirstIsRight, "nothing has to be read"),
            (planted.AnyEndWins, "chance is as good as skill"),
            (planted.TooShort, "cannot be won"),
        ],
    )
    def test_nothing_to_learn_is_a_fault(self, fault: type[TextEnv], words: str) -> None:
        env, graphs, episodes = fault(), graphs_of(fault), random_episodes(fault)
        wins = find_wins(fault, [graph.task for graph in graphs], graphs, NEVER)
        plays = played(env, env.tasks("train")[:5], constant_players(episodes), NEVER)
        finding = check_headroom(episodes, [], wins, len(graphs), graphs, plays, False)
        assert finding.state == "fault" and words in finding.words


@pytest.mark.parametrize(
    ("fault", "check"),
    [(planted.SetOrder, "deterministic"), (planted.ByTheClock, "deterministic"), (planted.KeepsTheKey, "isolated")],
)
def test_other_processes_and_orders_of_play_show_it(fault: type[TextEnv], check: str) -> None:
    walks = [Walk("train", number, number, ("left", "take")) for number in range(12)]
    if fault is planted.SetOrder:
        walks = [Walk("train", n, n, tuple(t.payload["case"])) for n, t in enumerate(fault().tasks("train")[:6])]
    if fault is planted.KeepsTheKey:
        keys = [task.payload["case"] for task in fault().tasks("train")]
        walks = [Walk("train", n, n, ("left",) * (c[0] - c[1]) + ("take",)) for n, c in enumerate(keys) if c[0] >= c[1]]
        walks += walks[:2]
    findings = check_repeatable({"name": f"{fault.__module__}:{fault.__name__}"}, walks)
    assert [finding.check for finding in findings if finding.state == "fault"] == [check]


def test_luck_is_told_from_what_a_task_fixes() -> None:
    assert luck_in_steps(make({"name": "reflectrl.examples.blackjack:BlackjackEnv"}))
    dry = {"name": "reflectrl.core.envs.adapter:GymTextEnv", "id": "FrozenLake-v1", "actions": ["l", "d", "r", "u"]}
    assert not luck_in_steps(make({**dry, "settings": {"is_slippery": False}}))  # it draws, and nothing comes of it
    assert luck_in_steps(make(dry)) and not luck_in_steps(planted.Corridor())


class TestCommand:
    def test_a_fault_is_named_with_exit_code_1_in_json_and_on_a_badge(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
        words = ["certify", "benchmarks.planted:BlindLock", "--minutes", "0"]
        words += ["-o", str(tmp_path / "report.json"), "--badge", str(tmp_path / "badge.svg")]
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 1
        report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        assert report["verdict"] == "faulty" and report["faults"] == ["text"]
        assert {line["check"] for line in report["checks"]} == set(CHECKS) - {"learnable"}
        said = capsys.readouterr()
        assert "fault: text" in said.out and "other processes ..." in said.out
        assert "\\x1b" not in said.out + said.err  # codes of a terminal, shown as text
        assert "faulty: text" in (tmp_path / "badge.svg").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["no_such_env"], "unknown environment 'no_such_env'"),
            (["NoSuchLake-v1"], "gymnasium knows no 'NoSuchLake-v1'"),
            (["taxi", "--minutes", "-1"], "--minutes must be at least 0"),
            (["taxi", "--wheels", "3"], "wheels"),
        ],
    )
    def test_what_cannot_be_made_is_one_line_and_exit_code_2(
        self, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["certify", *words]) == 2
        said = capsys.readouterr().err
        assert line in said and said.count("\n") == 1


def test_a_gymnasium_id_is_an_environment_and_leaves_nothing_behind() -> None:
    assert is_gym_id("FrozenLake-v1") and is_gym_id("my_module:Name-v0")
    assert not is_gym_id("my_module:MyEnv") and not is_gym_id("planning-walk")
    with environment_of("FrozenLake-v1") as name:
        env = make({"name": name})
        assert env.tasks("train")
        folder = Path(__import__(name.partition(":")[0]).__file__).parent
    assert not folder.exists()


@pytest.mark.parametrize("faults", [(), ("text", "reward")])
def test_a_badge_is_an_image_that_says_the_verdict(faults: tuple[str, ...]) -> None:
    certificate = Certificate("<env> & co", {}, [Finding(check, "fault", "so") for check in faults])
    image = ElementTree.fromstring(badge(certificate))  # noqa: S314 -- our own text
    texts = [part.text for part in image.iter() if part.tag.endswith("text")]
    assert texts == ["reflectrl certify", f"faulty: {', '.join(faults)}" if faults else "sound"]


def test_a_certificate_shows_what_the_coach_said(capsys: pytest.CaptureFixture[str]) -> None:
    show(Certificate("env", {}, [Finding("learnable", "note", "no", {"coach": ["rl-only: next: more \x1btime"]})]))
    assert "coach: rl-only: next: more \\x1btime\n" in capsys.readouterr().out


def test_learning_is_measured_beside_chance() -> None:
    small = {"model": {"layers": 1, "width": 16, "heads": 2}, "eval": {"episodes": 4}}
    small["rl"] = {"updates": 2, "episodes": 8, "eval_every": 2, "eval_episodes": 4, "own_wins": 0}
    finding = check_learning({"name": "benchmarks.planted:Lamps"}, 1, small)
    assert finding.check == "learnable" and finding.state in ("ok", "note"), finding
    assert len(finding.figures["learned"]) == len(finding.figures["random"]) == 3
    assert "rl-only: likely: 16 episodes are too few to learn from" in finding.figures["coach"]


def test_the_bench_has_twenty_faults_and_twenty_sound_ones() -> None:
    faults = [fault for fault in expected().values() if fault]
    assert len(faults) >= 20 and len(expected()) - len(faults) >= 20 and set(faults) <= set(CHECKS)
    assert np.unique(faults).size >= 7

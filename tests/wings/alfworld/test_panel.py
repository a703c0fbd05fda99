"""The ALFWorld panel: the recipe from nothing to its tables, a model behind an address, and games that stay apart."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import alfworld_isolation, alfworld_panel
from reflectrl.cli import main
from reflectrl.core.episodes import read_episodes, to_lines
from reflectrl.core.players import ExpertPlayer, RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.statistics import wilson
from reflectrl.core.types import UserError
from reflectrl.wings.alfworld.env import AlfworldEnv
from reflectrl.wings.alfworld.game import TYPES, to_json
from reflectrl.wings.alfworld.importing import generate_games
from reflectrl.wings.alfworld.library import SETS
from reflectrl.wings.alfworld.reading import compile_game
from tests.serving.endpoints.scripted import ChatServer, serving
from tests.wings.alfworld.houses import kitchen

SPLITS = ("valid_seen-current", "valid_seen-paper", "valid_unseen-current", "valid_unseen-paper")
TINY = shlex.split(
    "--processes 1 --seeds 0,1 --model.layers 1 --model.width 16 --model.heads 2 --model.mixed-precision off"
    " --play.reflection-tokens 4 --env.horizon 15 --teach.tasks 6 --teach.validation-tasks 4 --sft.steps 2"
    " --sft.policy-steps 1 --sft.batch-size 4 --sft.eval-every 1 --sft.eval-rows 4"
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A game of each type in each official set."""
    folder = tmp_path / "games"
    folder.mkdir()
    for number, split in enumerate(SETS):
        games = sorted((compile_game(*kitchen(kind, number)) for kind in TYPES), key=lambda game: game.id)
        (folder / f"{split}.games.jsonl").write_text("".join(to_json(game) + "\n" for game in games))
    return folder


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated games: 60 for training, six in each other set."""
    folder = tmp_path_factory.mktemp("rooms")
    generate_games(60, 5, folder)
    return folder


def expert_in_words(store: Path) -> Any:
    """A model behind an address that knows the expert's command for every text of the panel."""
    settings: dict[str, Any] = {"games": str(store), "dialect": "both", "recall": 1, "guide": True}
    env = AlfworldEnv(**settings)
    jobs = [Job(task, 0) for split in SPLITS for task in env.tasks(split)]
    commands: dict[str, set[str]] = {}
    for episode in rollout(jobs, lambda: AlfworldEnv(**settings), ExpertPlayer()):
        for step in episode.steps:
            chosen = step.observation.actions[step.action]
            commands.setdefault(step.observation.text.strip(), set()).add(chosen)

    def reply(request: dict[str, Any]) -> str:
        asked = request["messages"][-1]["content"]
        text = max((text for text in commands if text in asked), key=len)
        # With something in the hand, the same text may be of either dialect; only the list of commands tells which.
        return next(command for command in commands[text] if f"- {command}\n" in asked)

    return reply


def test_one_command_makes_the_panel_from_nothing(
    store: Path, server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    server.reply = expert_in_words(store)
    address = ["--endpoint.base-url", server.url, "--endpoint.model", "m"]
    arms = ["--arms", "random,expert,sft,asked", *address]
    assert main(["run", "alfworld-panel", "--env.games", str(store), *arms, *TINY]) == 0
    run = Path("runs/alfworld-panel")

    taught = list(read_episodes(run / "episodes" / "teach-seed0-train.jsonl"))
    assert {episode.task.payload.get("dialect") for episode in taught} == {None, "paper"}
    assert len({episode.task.payload["game"] for episode in taught}) == 6  # every game in one of the two dialects
    results = json.loads((run / "results.json").read_text())
    for split in SPLITS:
        played = list(read_episodes(run / "episodes" / f"eval-asked-seed0-{split}-all-greedy.jsonl"))
        texts = {step.observation.text for episode in played for step in episode.steps}
        assert any("You arrive at loc " in text for text in texts) == split.endswith("-paper")
    whole = {(row["arm"], row["split"]): row for row in results["summary"] if row["stage"] == "all"}
    assert set(whole) == {(arm, split) for arm in ("random", "expert", "sft", "asked") for split in SPLITS}
    assert all(row["episodes"] == 12 and row["seeds"] == 2 for row in whole.values())  # six games, two seeds
    assert all(whole[arm, split]["success"] == 1.0 for arm in ("expert", "asked") for split in SPLITS)
    assert not any("illegal" in row for row in whole.values())  # every answer named a command
    types = {row["stage"] for row in results["summary"] if row["split"] == "valid_unseen-paper"}
    assert types == {"place", "light", "clean", "heat", "cool", "two", "all"}

    capsys.readouterr()
    assert alfworld_panel.main([str(run)]) == 0
    shown = capsys.readouterr().out
    low = 100 * wilson(24, 24, 0.95)[0]  # twelve games in two seeds: the two dialects of a game count once
    assert f"| expert | greedy | 2 | {'100.0 [76, 100] | ' * 4}100.0 [{low:.0f}, 100] |" in shown
    hours = [line.split(" | ") for line in shown.partition("| part |")[2].splitlines()[2:]]
    timings = map(json.loads, (run / "timings.jsonl").read_text().splitlines())
    seconds = [line.get("cpu_seconds", 0.0) for line in timings]
    assert [line[0].strip("| ") for line in hours] == [
        "teach", "base", "sft", *(f"play of {arm}" for arm in ("random", "expert", "sft", "asked")), "all"
    ]  # fmt: skip
    assert float(hours[-1][2]) == pytest.approx(sum(seconds) / 3600, abs=1e-3)


def test_without_a_dialect_in_its_name_a_split_is_played_in_both(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--env.games", str(store), "--arms", "expert", "--seeds", "0", "--eval.splits", "valid_seen"]
    assert main(["run", "alfworld-panel", *words]) == 0
    [*_, row] = json.loads(Path("runs/alfworld-panel/results.json").read_text())["rows"]
    assert (row["episodes"], row["tasks"], row["success"]) == (12, 6, 1.0)
    assert (row["low"], row["high"]) == wilson(6, 6, 0.95)
    assert len(alfworld_panel.success_table({"rows": [row], "confidence": 0.95}).splitlines()) == 3


def test_without_unseen_games_one_line_says_what_is_missing_before_anything_is_made(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (store / "valid_unseen.games.jsonl").unlink()
    assert main(["run", "alfworld-panel", "--env.games", str(store)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "has no games of valid_unseen, only of train, valid_seen, valid_train" in line
    assert f"`reflectrl data alfworld --store {store} --download`" in line and "--eval.splits" in line
    assert not list(Path("runs").rglob("*.jsonl"))


def test_the_tables_need_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a finished run"):
        alfworld_panel.main([str(tmp_path)])


class TestIsolation:
    """No game changes another one. `benchmarks/alfworld_isolation.py` says the same of the official games."""

    def test_games_are_alone_what_they_are_among_others_in_any_order(self, rooms: Path, capsys: Any) -> None:
        words = ["--games", str(rooms), "--splits", "valid_seen,valid_unseen,valid_train"]
        assert alfworld_isolation.main(words) == 0
        rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
        assert [row[0] for row in rows] == [
            "alone, again", "one after another", "one after another, backwards", "one after another, shuffled",
            "side by side", "side by side, in another order", "from saved states",
        ]  # fmt: skip
        assert {(games, differences) for _, games, _, _, differences in rows} == {("36", "0")}
        assert len({(steps, wins) for _, _, steps, wins, _ in rows}) == 1 and int(rows[0][3]) > 18

    @pytest.mark.parametrize("player", [RandomPlayer(), ExpertPlayer()])
    def test_batches_of_live_games_change_no_episode(self, rooms: Path, player: Any) -> None:
        settings: dict[str, Any] = {"games": str(rooms), "dialect": "both", "recall": 1, "guide": True}
        env = AlfworldEnv(**settings)
        jobs = [Job(task, number) for number, task in enumerate([*env.tasks("valid_seen"), *env.tasks("valid_unseen")])]
        alone = {}
        for job in jobs:
            [episode] = rollout([job], lambda: AlfworldEnv(**settings), player)
            alone[job.task.split, job.task.id] = to_lines([episode])
        for batch, order in ((1, jobs), (5, jobs[::-1]), (64, jobs[::2] + jobs[1::2])):
            played = list(rollout(order, lambda: AlfworldEnv(**settings), player, batch=batch))
            assert len(played) == len(jobs) == 24
            assert all(to_lines([episode]) == alone[episode.task.split, episode.task.id] for episode in played)

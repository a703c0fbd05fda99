"""First mistakes: a lost episode is counted by its first action that is not the expert's."""

from pathlib import Path

import pytest

from benchmarks.first_mistakes import first_mistake, main
from reflectrl.core.episodes.log import EpisodeLog
from reflectrl.core.players.simple import ExpertPlayer, ScriptedPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.wings.autoexplore.session.analyses.env import AnalysesEnv


def test_lost_episodes_are_counted_by_their_first_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = AnalysesEnv(horizon=4)
    task = next(task for task in env.tasks("test") if env.group(task) == "what-if")
    env.reset(options={"task": task})
    read = f"read {env.project.path}"
    script = [read, "run", "run", read.replace(env.project.path, "charts/map.json")]
    [lost] = rollout([Job(task, 0)], lambda: AnalysesEnv(horizon=4), ScriptedPlayer(script))
    [won] = rollout([Job(task, 0)], lambda: AnalysesEnv(horizon=4), ExpertPlayer())
    assert won.success and first_mistake(env, won) is None
    assert not lost.success and first_mistake(env, lost) == ("what-if", "scale", "run")
    with EpisodeLog(tmp_path / "log.jsonl") as log:
        log.append(won)
        log.append(lost)
        log.append(lost)
    main([str(tmp_path / "log.jsonl")])
    assert capsys.readouterr().out.split() == ["2", "what-if", "expert:", "scale", "player:", "run"]

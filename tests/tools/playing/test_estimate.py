"""`estimate`: the success of a trained arm from a log, without playing."""

from dataclasses import replace
from pathlib import Path

from reflectrl.cli import main
from reflectrl.core.episodes import read_episodes, to_lines
from reflectrl.core.types import Choice, Step
from tests.runs.conftest import finished, like, recipe_file

__all__ = ["finished", "like", "recipe_file"]


def sampled(run: Path, arm: str) -> list[str]:
    return [str(path) for path in sorted((run / "episodes").glob(f"eval-{arm}-seed0-*sampled*.jsonl"))]


def test_an_arm_has_the_success_of_its_own_log(finished: Path, capsys) -> None:
    logs = sampled(finished, "sft")
    won = [episode.success for log in logs for episode in read_episodes(Path(log))]
    assert main(["estimate", str(finished), "--arm", "sft", "--log", *logs]) == 0
    out = capsys.readouterr().out
    assert f"importance weighting:   success {sum(won) / len(won):.3f}" in out
    assert f"effective number of episodes: {len(won):.1f}" in out
    assert main(["estimate", str(finished), "--arm", "reflect-rl", "--log", *logs, "--confidence", "0.9"]) == 0
    assert "doubly robust:" in capsys.readouterr().out


def test_episodes_that_do_not_count_are_named_and_too_few_are_refused(finished: Path, tmp_path: Path, capsys) -> None:
    logged = [episode for log in sampled(finished, "sft") for episode in read_episodes(Path(log))]
    (tmp_path / "log.jsonl").write_text(to_lines([*logged, replace(logged[0], steps=())]), encoding="utf-8")
    words = ["estimate", str(finished), "--arm", "sft", "--log", str(tmp_path / "log.jsonl")]
    assert main(words) == 0
    assert f"1 of {len(logged) + 1} episodes are left out" in capsys.readouterr().out
    unlikely = []  # one episode has a choice that the log's player hardly ever makes, and so nearly all weight
    for episode in logged:
        [turn] = [turn for turn in episode.steps[0].turns if isinstance(turn, Choice)]
        rare = replace(turn, logprobs=(-30.0 if episode is logged[0] else -0.01,))
        unlikely.append(replace(episode, steps=(replace(episode.steps[0], turns=(rare,)), *episode.steps[1:])))
    (tmp_path / "log.jsonl").write_text(to_lines(unlikely), encoding="utf-8")
    assert main(words) == 2
    assert "the effective number of episodes is 1.0 of" in capsys.readouterr().err


def narrowed(step: Step) -> Step:
    """The step as if its action had been the only one that sampling left."""
    turns = [replace(turn, support=(step.action,)) if isinstance(turn, Choice) else turn for turn in step.turns]
    return replace(step, turns=tuple(turns))


def test_what_cannot_be_estimated_is_said_in_one_line(finished: Path, tmp_path: Path, capsys) -> None:
    greedy = [log.replace("sampled", "greedy") for log in sampled(finished, "sft")]
    assert main(["estimate", str(finished), "--arm", "sft", "--log", *greedy]) == 2
    assert "has a choice without its probability" in capsys.readouterr().err
    cut = [replace(episode, steps=tuple(map(narrowed, episode.steps))) for episode in read_episodes(Path(greedy[0]))]
    (tmp_path / "cut.jsonl").write_text(to_lines(cut), encoding="utf-8")
    assert main(["estimate", str(finished), "--arm", "sft", "--log", str(tmp_path / "cut.jsonl")]) == 2
    assert "was sampled with top-k or top-p" in capsys.readouterr().err
    assert main(["estimate", str(finished), "--arm", "random", "--log", *greedy]) == 2
    assert "does not choose by a policy" in capsys.readouterr().err
    assert main(["estimate", str(finished), "--log", greedy[0], "--confidence", "2"]) == 2

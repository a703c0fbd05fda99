"""Alarms end a collapse or take it back, trackers are told every step once, `watch` shows a run that goes on."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.forks import Forks
from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.digests import unseal
from reflectrl.learn import online
from reflectrl.tools.watching.alarms import Alarms
from reflectrl.tools.watching.config import AlarmsConfig
from reflectrl.tools.watching.live import HEADINGS, bars, lines, table
from tests.runs.conftest import LIKE, contents

GOOD = {
    "success": 0.5,
    "entropy": 0.5,
    "approx_kl": 0.01,
    "distinct_actions": 4,
    "groups_with_signal": 0.5,
    "loss": 0.1,
}


def alarms(found: Sequence[dict[str, Any]], **settings: Any) -> list[tuple[int, str, str]]:
    """The step, verdict and reason of every alarm in these lines."""
    judge = Alarms(AlarmsConfig(**{"action": "stop", "patience": 3, **settings}), "training")
    heard = [(i, *judge.on_metrics({"step": i, **GOOD, **line})) for i, line in enumerate(found)]
    return [one for one in heard if one[2]]


class TestAlarms:
    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ({"entropy": 0.001}, "entropy: 0.001, below 0.01"),
            ({"approx_kl": 0.9}, "an update moves the policy by 0.9 nats"),
            ({"groups_with_signal": 0.0}, "groups with signal: 0, below 0.02"),
            ({"distinct_actions": 1}, "take 1 different action(s)"),
        ],
    )
    def test_what_looks_bad_for_long_enough_is_an_alarm(self, line: dict[str, Any], why: str) -> None:
        found = alarms([line] * 3 + [{}] + [line] * 3)
        assert [step for step, _, _ in found] == [2, 6] and all(why in reason for _, _, reason in found)
        assert not alarms([line, line, {}, line, line])

    def test_a_number_that_is_not_finite_is_one_at_once(self) -> None:
        assert [(step, why) for step, _, why in alarms([{}, {"loss": float("nan")}])] == [(1, "loss is nan")]
        assert [why for *_, why in alarms([{"reflection_loss": float("inf")}])] == ["reflection_loss is inf"]

    def test_who_wins_may_be_sure(self) -> None:
        sure = {"success": 0.99, "entropy": 0.0, "groups_with_signal": 0.0, "distinct_actions": 1}
        assert not alarms([sure] * 10)

    def test_success_that_falls_is_one_but_not_where_the_next_stage_begins(self) -> None:
        before, after = [{"success": 0.9, "stage": "fetch"}] * 4, [{"success": 0.2}] * 6
        [(step, _, why)] = alarms([*before, *({**line, "stage": "fetch"} for line in after)])[:1]
        assert step >= 6 and why.startswith("success fell from 90%")
        assert not alarms([*before, *({**line, "stage": "bring"} for line in after)])

    def test_after_so_many_roll_backs_it_stops(self) -> None:
        found = alarms([{"entropy": 0.0}] * 12, action="roll-back", roll_backs=2)
        assert [verdict for _, verdict, _ in found] == ["roll-back", "roll-back", "stop", "stop"]

    def test_a_training_that_goes_on_is_judged_as_if_it_had_not_been_killed(self) -> None:
        history = [{"step": i, **GOOD, "entropy": 0.0} for i in range(8)]
        whole = Alarms(AlarmsConfig("roll-back", patience=3, roll_backs=1), "training")
        heard = [whole.on_metrics(line) for line in history]
        for cut in range(8):
            rest = Alarms(AlarmsConfig("roll-back", patience=3, roll_backs=1), "training", history[:cut])
            assert [rest.on_metrics(line) for line in history[cut:]] == heard[cut:]


class TestAlarmsOfARun:
    def metrics(self, run: Path, name: str = "rl-reflect-rl") -> list[dict[str, Any]]:
        text = (run / "metrics" / f"seed0-{name}.jsonl").read_text(encoding="utf-8")
        return [json.loads(unseal(line)) for line in text.splitlines()]

    def test_stop_ends_the_training_with_its_best_weights(
        self, like: LIKE, tmp_path: Path, finished: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        recipe = like("rl.updates=6", "alarms.action=stop", "alarms.patience=2", "alarms.entropy=10")
        pipeline.run(recipe, tmp_path / "run")
        steps = [line["step"] for line in self.metrics(tmp_path / "run")]
        assert steps == [0, 1, 2] and "alarm" in self.metrics(tmp_path / "run")[1]
        assert "alarm in seed0-rl-reflect-rl at step 1: entropy" in caplog.text
        assert (tmp_path / "run/results.json").is_file()

    def test_roll_back_halves_the_rate_and_goes_on(self, like: LIKE, tmp_path: Path) -> None:
        more = ["alarms.action=roll-back", "alarms.patience=1", "alarms.entropy=10", "alarms.roll_backs=1"]
        pipeline.run(like("rl.updates=6", *more), tmp_path / "run")
        found = self.metrics(tmp_path / "run")
        assert [line["step"] for line in found] == [0, 1, 2] and found[1]["lr"] == pytest.approx(like().rl.lr / 2)

    def test_every_arm_that_learns_by_reward_is_stopped(self, like: LIKE, tmp_path: Path) -> None:
        arms = ("archer", "linvit", "reflector-rl", "both-rl", "reflector-rejection")
        small = ("values.critic_steps=2", "values.critic_batch=4", "values.actor_steps=1", "values.actor_batch=4")
        small += ("reflecting.states=2", "reflecting.samples=2", "reflecting.rounds=3", "reflecting.steps=1")
        told = ("alarms.action=stop", "alarms.patience=1", "alarms.identical=99", "alarms.solved=1.0")
        recipe = like(f"arms={','.join(arms)}", "rl.updates=3", "rl.algorithm=ppo", "env.test=2", *small, *told)
        pipeline.run(recipe, tmp_path / "run", "eval")
        for arm in arms:
            found = self.metrics(tmp_path / "run", arm)
            assert [line["step"] for line in found] == [0, 1] and "different action" in found[0]["alarm"], arm
        timed = [json.loads(line) for line in (tmp_path / "run/timings.jsonl").read_text().splitlines()]
        assert {line["arm"] for line in timed if line.get("kind") == "rl"} == set(arms), "for curves over minutes"

    def test_alarms_that_change_what_rl_ends_with_belong_to_its_settings(
        self, recipe_file: Path, copy: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["run", str(recipe_file), "--folder", str(copy), "--alarms.action", "warn"]) == 0
        assert main(["run", str(recipe_file), "--folder", str(copy), "--alarms.action", "stop"]) == 2
        assert "alarms.action" in capsys.readouterr().err

    def test_warn_changes_nothing_but_the_metrics(self, like: LIKE, tmp_path: Path, finished: Path) -> None:
        pipeline.run(like("alarms.action=warn", "alarms.patience=1", "alarms.entropy=10"), tmp_path / "run")
        assert contents(tmp_path / "run", ["results.json"]) == contents(finished, ["results.json"])
        told = [{k: v for k, v in line.items() if k != "alarm"} for line in self.metrics(tmp_path / "run")]
        assert told == self.metrics(finished) and "alarm" in self.metrics(tmp_path / "run")[0]

    def test_sft_that_is_no_longer_finite_ends_with_the_weights_before(self, like: LIKE, tmp_path: Path) -> None:
        more = ["sft.steps=40", "sft.lr=1e30", "sft.optimizer=adamw", "alarms.action=stop"]
        pipeline.run(like(*more), tmp_path / "run")
        [line] = self.metrics(tmp_path / "run", "reflector")
        assert line["alarm"] == "loss is nan" and (tmp_path / "run/results.json").is_file()


class TestTrackers:
    def events(self, run: Path, name: str = "seed0-rl-reflect-rl", tag: str = "entropy") -> list[tuple[int, float]]:
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        found = accumulator.EventAccumulator(str(run / "trackers/tensorboard" / name))
        found.Reload()
        return [(event.step, event.value) for event in found.Scalars(tag)]

    def test_tensorboard_is_told_what_the_metrics_say(self, like: LIKE, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        pipeline.run(like('watch.trackers=["tensorboard"]'), tmp_path / "run")
        logged = TestAlarmsOfARun().metrics(tmp_path / "run")
        told = [(line["step"], pytest.approx(line["entropy"])) for line in logged if "entropy" in line]
        assert self.events(tmp_path / "run") == told and len(told) == 3

    def test_a_run_that_was_killed_tells_no_step_twice(
        self, like: LIKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("tensorboard")
        recipe, train_online = like('watch.trackers=["tensorboard"]', "rl.eval_every=3"), online.train_online

        def killed(rollouts: Any, config: Any, seed: int, log: Callable[..., Any], folder: Path, hold: bool) -> None:
            def until(metrics: dict[str, Any]) -> None:
                log(metrics)
                if metrics["step"] == 1:  # no state was saved since step 0
                    raise KeyboardInterrupt

            train_online(rollouts, config, seed, until, folder, hold)

        with monkeypatch.context() as patch:
            patch.setattr(online, "train_online", killed)
            with pytest.raises(KeyboardInterrupt):
                pipeline.run(recipe, tmp_path / "run")
        pipeline.run(recipe, tmp_path / "run")
        assert [step for step, _ in self.events(tmp_path / "run")] == [0, 1, 2]

    def test_none_is_imported_unless_it_is_named(self, forks: Forks, recipe_file: Path, tmp_path: Path) -> None:
        program = (
            "import sys; from reflectrl.cli import main; code = main(sys.argv[1:]);"
            "print([name for name in ('tensorboard', 'mlflow', 'wandb', 'trackio') if name in sys.modules], code)"
        )
        words = ["run", str(recipe_file), "--folder", str(tmp_path / "run"), "--arms", "reflect-rl"]
        done = forks.run(["-c", program, *words], tmp_path, timeout=300)
        assert done.stdout.splitlines()[-1] == "[] 0", done.stderr

    def test_one_that_is_not_installed_is_said_before_anything_is_made(
        self, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        absent = [name for name in ("wandb", "mlflow", "trackio") if shutil.which(name) is None]
        words = ["run", str(recipe_file), "--folder", str(tmp_path / "run"), "--watch.trackers", absent[0]]
        assert main(words) == 2
        assert f"pip install '.[{absent[0]}]'" in capsys.readouterr().err
        assert not [*(tmp_path / "run").glob("episodes/*")]


class TestWatch:
    def test_a_finished_run_is_shown_once(self, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["watch", str(finished)]) == 0
        said = capsys.readouterr().out
        assert "teach 2 of 2" in said and "complete" in said and "rl reflect-rl (seed 0)" in said

    def test_a_run_that_another_process_makes_is_followed_to_its_end(
        self, forks: Forks, recipe_file: Path, tmp_path: Path
    ) -> None:
        words = ["-m", "reflectrl", "run", str(recipe_file), "--folder", str(tmp_path / "run")]
        running = forks.start([*words, "--rl.updates", "12"], tmp_path)
        until(lambda: (tmp_path / "run/recipe.toml").is_file())
        watch = ["-m", "reflectrl", "watch", str(tmp_path / "run"), "--every", "0.1"]
        seen = forks.run(watch, tmp_path, timeout=300)
        assert running.wait(timeout=300) == 0
        assert seen.returncode == 0 and "eval 3 of 3" in seen.stdout, seen.stderr

    def test_ctrl_c_ends_the_watching_without_a_word(
        self, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def pressed(seconds: float) -> None:
            raise KeyboardInterrupt

        state = json.loads((copy / "state.json").read_text(encoding="utf-8"))
        (copy / "state.json").write_text(json.dumps({**state, "complete": ["teach"]}), encoding="utf-8")
        monkeypatch.setattr(time, "sleep", pressed)
        assert main(["watch", str(copy)]) == 0
        said = capsys.readouterr()
        assert said.err == "" and "rl reflect-rl" in said.out

    @pytest.mark.parametrize(("width", "last"), [(80, False), (200, True)])
    def test_a_narrow_terminal_gets_fewer_columns_and_whole_words(self, finished: Path, width: int, last: bool) -> None:
        screen = Console(width=width, record=True, file=io.StringIO())
        screen.print(table(finished, width))
        rows = screen.export_text().splitlines()
        shown = [heading for heading in HEADINGS if heading and any(f" {heading} " in row for row in rows)]
        assert max(map(len, rows)) <= width and not any("…" in row for row in rows)
        assert {"artifact", "state", "step"} <= set(shown) and ("loss" in shown) is last

    def test_lines_that_are_half_written_or_damaged_are_passed_over(self, tmp_path: Path, copy: Path) -> None:
        path = copy / "metrics/seed0-rl-reflect-rl.jsonl"
        whole = lines(path)
        path.write_text(path.read_text().replace('"step": 1,', '"step": 9,') + '{"step": 4, "los')
        assert [line["step"] for line in lines(path)] == [line["step"] for line in whole if line["step"] != 1]
        assert main(["watch", str(copy), "--once"]) == 0

    @pytest.mark.parametrize(
        ("words", "line"), [([], "is not a run folder"), (["--every", "0"], "must be above 0"), (["--all"], "--all")]
    )
    def test_mistakes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
        assert main(["watch", str(tmp_path), *words]) == 2
        assert line in capsys.readouterr().err

    def test_a_curve_is_a_row_of_bars(self) -> None:
        assert bars([0.0, 0.5, 1.0]) == "▁▅█" and bars([]) == "" and bars([3.0, 3.0]) == "▁▁"


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()

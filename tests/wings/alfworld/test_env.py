"""ALFWorld as an environment: its tasks, its text, its rewards, its experts, and what it says about bad input."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.config import RLConfig, Word
from reflectrl.core.envs import make
from reflectrl.core.players import ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Task, UserError
from reflectrl.learn.exploration import RewardShaping
from reflectrl.learn.validation import evenly
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.alfworld.env import AlfworldEnv
from reflectrl.wings.alfworld.game import SHORT_NAMES, TYPES, Game, to_json
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.importing import generate_games
from reflectrl.wings.alfworld.notes import ranges
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.reference import require_plain
from reflectrl.wings.alfworld.variants import redrawn
from tests.wings.alfworld.houses import kitchen


def game(task_type: str, trial: int = 1) -> Game:
    return compile_game(*kitchen(task_type, trial))


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A game of each type in each of two sets, and one more in the training set."""
    for number, split in enumerate(("train", "valid_train", "valid_seen")):
        games = sorted(
            (game(kind, 10 * number + k) for kind in TYPES for k in range(1 + (number == 0))), key=lambda g: g.id
        )
        (tmp_path / f"{split}.games.jsonl").write_text("".join(to_json(one) + "\n" for one in games))
    return str(tmp_path)


@pytest.fixture
def env(store: str) -> AlfworldEnv:
    return AlfworldEnv(games=store)


def play(env: AlfworldEnv, task: Task, *commands: str) -> list[tuple[float, dict[str, Any]]]:
    """Reset, carry out commands by their texts, and return rewards and infos."""
    env.reset(seed=0, options={"task": task})
    found = []
    for command in commands:
        _, reward, _, _, info = env.step(list(env.legal_actions()).index(command))
        found.append((reward, info))
    return found


def task_of(env: AlfworldEnv, kind: str) -> Task:
    return next(task for task in env.tasks("test") if env.group(task) == kind)


class TestTasks:
    def test_the_official_sets_stand_behind_the_splits(self, env: AlfworldEnv) -> None:
        assert {s: len(env.tasks(s)) for s in ("train", "validation", "test", "valid_seen")} == {
            "train": 12, "validation": 6, "test": 6, "valid_seen": 6,
        }  # fmt: skip
        assert {task.payload["set"] for task in env.tasks("validation")} == {"valid_train"}

    def test_types_subsets_and_limits_choose_games(self, store: str) -> None:
        assert len(AlfworldEnv(games=store, types=("heat", "pick_two_obj_and_place")).tasks("train")) == 4
        assert len(AlfworldEnv(games=store, subset="*-Apple-*").tasks("train")) == 4
        assert len(AlfworldEnv(games=store, limit=3).tasks("train")) == 3

    def test_stages_by_type_and_by_length(self, store: str, env: AlfworldEnv) -> None:
        by_type = AlfworldEnv(games=store, curriculum="types")
        assert by_type.stages == (*SHORT_NAMES.values(), "all")
        assert {env.group(task) for task in by_type.tasks("train", "heat")} == {"heat"}
        assert env.stages == ("short", "medium", "all")
        assert len(env.tasks("train", "short")) <= len(env.tasks("train", "medium")) <= len(env.tasks("train"))

    def test_variants_multiply_the_training_games_alone(self, store: str) -> None:
        env = AlfworldEnv(games=store, variants=2)
        assert len(env.tasks("train")) == 36 and len(env.tasks("test")) == 6
        assert len({task.id for task in env.tasks("train")}) == 36
        for task in env.tasks("train")[12:]:
            env.reset(seed=0, options={"task": task})
            while not env.done:
                env.step(env.teacher.expert_action(env))
            assert env.success

    def test_validation_on_training_games_deals_them_out_anew(self, store: str) -> None:
        env = AlfworldEnv(games=store, variants=2, validation="train")
        assert len(env.tasks("validation")) == 24
        assert not {task.id for task in env.tasks("validation")} & {task.id for task in env.tasks("train")}

    def test_generated_games_go_by_another_name(self, tmp_path: Path, env: AlfworldEnv) -> None:
        generate_games(4, 0, tmp_path / "made")
        made = AlfworldEnv(games=str(tmp_path / "made")).tasks("train")
        assert {task.env for task in made} == {"alfworld-generated"} != {task.env for task in env.tasks("train")}

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"types": ("heet",)}, "did you mean 'heat'"),
            ({"subset": "pick_up_*"}, "no games of pick_up_"),
            ({"horizon": 0}, "horizon must be at least 1"),
            ({"validation": "valid_sen"}, "did you mean 'valid_seen'"),
            ({"engine": "textworld"}, "needs source"),
        ],
    )
    def test_bad_arguments_are_named(self, store: str, arguments: dict[str, Any], complaint: str) -> None:
        with pytest.raises(UserError, match=complaint):
            AlfworldEnv(games=store, **arguments).tasks("train")

    def test_without_games_the_three_ways_to_get_some_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError) as caught:
            AlfworldEnv(games=str(tmp_path / "nothing")).tasks("train")
        assert all(way in str(caught.value) for way in ("--download", "--from", "--generate"))


class TestPlaying:
    @pytest.mark.parametrize("dialect", ["current", "paper"])
    @pytest.mark.parametrize("expert", ["search", "planner"])
    @pytest.mark.parametrize("kind", SHORT_NAMES.values())
    def test_both_experts_win_every_type_in_both_dialects(
        self, store: str, dialect: Any, expert: Any, kind: str
    ) -> None:
        env = AlfworldEnv(games=store, dialect=dialect, expert=expert)
        env.reset(seed=0, options={"task": task_of(env, kind)})
        while not env.done:
            command = env.legal_actions()[env.teacher.expert_action(env)]
            assert env.teacher.analyse(env).endswith(f"Next: {command}")
            env.step(env.teacher.expert_action(env))
        assert env.success

    def test_the_planner_plays_on_where_nothing_can_be_won_any_more(self, tmp_path: Path) -> None:
        """A thing that fits nowhere stays in the hand for good."""
        stuck = game("pick_and_place_simple")
        receptacles = tuple(replace(r, holds=r.holds - {"apple"}) for r in stuck.receptacles)
        line = to_json(replace(stuck, receptacles=receptacles))
        (tmp_path / "train.games.jsonl").write_text(line + "\n")
        env = AlfworldEnv(games=str(tmp_path), expert="planner", horizon=5)
        play(env, env.tasks("train")[0], "go to sidetable 1", "take apple 1 from sidetable 1")
        while not env.done:
            env.teacher.analyse(env)
            env.step(env.teacher.expert_action(env))
        assert not env.success

    def test_it_keeps_every_promise_of_an_environment(self, env: AlfworldEnv) -> None:
        check_text_env(env)

    def test_milestones_pay_once_and_can_be_switched_off(self, store: str) -> None:
        way = ("go to countertop 1", "take mug 2 from countertop 1", "move mug 2 to countertop 1",
               "take mug 2 from countertop 1", "go to sidetable 1", "move mug 2 to sidetable 1")  # fmt: skip
        env = AlfworldEnv(games=store, milestone=0.5, step_cost=0.0)
        told = play(env, task_of(env, "place"), *way)
        assert [tuple(info["events"]) for _, info in told] == [("found",), ("taken",), (), (), (), ("placed", "won")]
        assert [reward for reward, _ in told] == [0.5, 0.5, 0, 0, 0, 1.5]
        plain = AlfworldEnv(games=store, milestone=0.0, step_cost=0.0)
        assert [reward for reward, _ in play(plain, task_of(plain, "place"), *way)] == [0, 0, 0, 0, 0, 1]

    def test_what_it_reports_on_the_way_are_its_subgoals(self, store: str) -> None:
        env = AlfworldEnv(games=store)
        pay = RewardShaping(RLConfig(milestone_coef=0.4, gamma=1.0, milestone_at_horizon="kept"), env)
        [episode] = rollout([Job(task_of(env, "heat"), 0)], lambda: AlfworldEnv(games=store), ExpertPlayer())
        events = {event for step in episode.steps for event in step.events}
        assert episode.success and events == {*env.subgoals, "won"}
        assert pay.metrics([episode]) == {"milestones": 1.0}
        assert max(pay.shaped(episode)) == pytest.approx(0.1) and sum(pay.shaped(episode)) == pytest.approx(0.0)

    def test_the_text_only_grows_and_says_what_commands_led_to(self, env: AlfworldEnv) -> None:
        play(env, task_of(env, "heat"), "go to fridge 1", "open fridge 1")
        assert env.history().endswith(
            "> go to fridge 1\nYou arrive at fridge 1. The fridge 1 is closed.\n"
            "> open fridge 1\nYou open the fridge 1. The fridge 1 is open. In it, you see a apple 2.\n"
        )
        assert "Your task is to: " in env.history()

    def test_the_status_repeats_what_the_text_has_said(self, store: str) -> None:
        env = AlfworldEnv(games=store)
        play(env, task_of(env, "place"), "go to fridge 1", "go to countertop 1", "take mug 2 from countertop 1")
        task = env.history().partition("Your task is to: ")[2].partition("\n")[0]
        lines = env.state().splitlines()
        assert lines[:2] == [f"Task: {task}", "Holding: mug 2"] and lines[2].startswith("At: countertop 1: ")
        assert lines[3] == "Seen: nothing" and "mug 2" not in lines[2]
        assert lines[4].startswith("Left: ") and "countertop 1" not in lines[4] and "fridge 1" in lines[4]
        plain = AlfworldEnv(games=store, status=False)
        play(plain, task_of(plain, "place"), "go to fridge 1")
        assert plain.state() == ""

    def test_a_guiding_status_names_the_likely_places_unless_the_prior_is_off(self, store: str) -> None:
        with_prior, without = (AlfworldEnv(games=store, guide=True, prior=prior) for prior in (True, False))
        for env in (with_prior, without):
            play(env, task_of(env, "cool"))
        assert "\nLeft for apple: sidetable 1, fridge 1, countertop 1, sinkbasin 1, ...\n" in with_prior.state()
        assert "\nLeft for apple: cabinet 1, countertop 1, fridge 1, microwave 1, ...\n" in without.state()
        assert with_prior.legal_actions()[with_prior.teacher.expert_action(with_prior)] == "go to sidetable 1"
        assert without.legal_actions()[without.teacher.expert_action(without)] == "go to cabinet 1"
        with pytest.raises(UserError, match="guide = true needs status"):
            AlfworldEnv(games=store, guide=True, status=False)

    def test_short_recall_shows_the_last_commands_and_the_status_instead_of_the_whole_text(self, store: str) -> None:
        way = "go to fridge 1", "go to countertop 1", "take mug 2 from countertop 1"
        whole, short = AlfworldEnv(games=store), AlfworldEnv(games=store, recall=2)
        for env in (whole, short):
            play(env, task_of(env, "place"), *way)
        assert short.history() == "" and short.state().endswith(whole.state())
        recent = "> go to countertop 1" + whole.history().partition(way[1])[2]
        assert short.state().removesuffix(whole.state()) == recent
        check_text_env(short)

    def test_without_status_a_short_recall_hides_all_that_was_seen_before(self, store: str) -> None:
        env = AlfworldEnv(games=store, recall=1, status=False, analysis="belief")
        play(env, task_of(env, "place"))
        introduction = env.history()
        assert introduction.startswith("-= Welcome") and "Your task is to: " in introduction and env.state() == ""
        play(env, task_of(env, "place"), "go to fridge 1", "go to countertop 1", "take mug 2 from countertop 1")
        assert env.history() == introduction
        assert env.state().splitlines() == [
            "> take mug 2 from countertop 1",
            "You pick up the mug 2 from the countertop 1.",
        ]
        check_text_env(env)

    def test_the_analyst_can_write_notes_of_what_was_seen_and_done(self, store: str) -> None:
        env = AlfworldEnv(games=store, recall=1, status=False, analysis="belief")
        play(env, task_of(env, "place"))
        assert env.teacher.analyse(env).startswith("Holding nothing, at nowhere. Next: go to ")
        play(env, task_of(env, "place"), "go to fridge 1", "go to countertop 1", "take mug 2 from countertop 1")
        notes, _, command = env.teacher.analyse(env).partition(" Next: ")
        assert notes == "Holding mug 2, at countertop 1. Searched countertop 1."  # the fridge is shut
        assert command == env.legal_actions()[env.teacher.expert_action(env)]

    def test_notes_list_numbers_in_ranges(self) -> None:
        places = ["cabinet 1", "cabinet 2", "cabinet 3", "cabinet 5", "drawer 2", "shelf 7", "shelf 8"]
        assert ranges(places) == ["cabinet 1-3 5", "drawer 2", "shelf 7-8"]

    def test_the_paper_dialect_has_its_own_words(self, store: str) -> None:
        env = AlfworldEnv(games=store, dialect="paper")
        way = "go to countertop 1", "take mug 2 from countertop 1", "put mug 2 in/on countertop 1"
        play(env, task_of(env, "place"), *way)
        assert "You arrive at loc " in env.history() and "You put the mug 2 in/on the countertop 1." in env.history()
        assert "help" not in env.legal_actions()

    def test_people_s_wordings_replace_the_template(self, store: str) -> None:
        env = AlfworldEnv(games=store, wording="human")
        env.reset(seed=0, options={"task": env.tasks("test")[0]})
        assert "Your task is to: Do something with the" in env.history()

    def test_the_analyst_owns_up_to_a_wasted_command(self, env: AlfworldEnv) -> None:
        play(env, task_of(env, "place"), "look")
        assert env.state().splitlines()[-1] == "New: nothing"
        assert env.teacher.analyse(env).startswith("The last command, look, brought nothing. ")


class TestBothDialects:
    """`dialect = "both"`: every game is two tasks."""

    def test_the_games_stand_in_the_list_once_per_dialect(self, store: str, env: AlfworldEnv) -> None:
        both = AlfworldEnv(games=store, dialect="both", variants=1)
        current, paper = (both.tasks(f"train-{dialect}") for dialect in ("current", "paper"))
        tasks = both.tasks("train")
        assert [task for task in tasks if "dialect" not in task.payload] == [replace(t, split="train") for t in current]
        assert [task for task in tasks if "dialect" in task.payload] == [replace(t, split="train") for t in paper]
        assert len(tasks) == 48 and len({task.id for task in tasks}) == 48
        assert [task.id for task in paper] == [f"{task.id}@paper" for task in current]
        assert [task.payload for task in paper] == [{**task.payload, "dialect": "paper"} for task in current]
        # Tasks of the current dialect are the same tasks as without the other one, so their logs stay valid.
        assert [task for task in both.tasks("test") if "dialect" not in task.payload] == env.tasks("test")
        assert [both.counted_as(task) for task in paper] == [task.id for task in current]
        check_text_env(both)

    @pytest.mark.parametrize("limit", [11, 12])
    def test_half_of_the_tasks_are_every_game_once_in_either_dialect(self, store: str, limit: int) -> None:
        tasks = AlfworldEnv(games=store, dialect="both", limit=limit).tasks("train")
        drawn = evenly(tasks, limit)
        assert len({task.payload["game"] for task in drawn}) == limit
        assert 3 <= sum("dialect" in task.payload for task in drawn) <= 9

    @pytest.mark.parametrize("dialect", ["current", "paper", "both"])
    def test_a_split_s_name_may_ask_for_a_dialect(self, store: str, dialect: Any) -> None:
        env = AlfworldEnv(games=store, dialect=dialect)
        for asked, words in (("current", "You arrive at countertop 1."), ("paper", "You arrive at loc ")):
            tasks = env.tasks(f"valid_seen-{asked}", "short")
            assert tasks and {task.split for task in tasks} == {f"valid_seen-{asked}"}
            for task in tasks:
                play(env, task, "go to countertop 1")
                assert env.spoken == asked and words in env.history()

    def test_milestones_are_reached_in_both_dialects_alike(self, store: str) -> None:
        env = AlfworldEnv(games=store, dialect="both", guide=True)
        for kind in SHORT_NAMES.values():
            rewards, actions = [], []
            for task in env.tasks("test"):
                if env.group(task) != kind:
                    continue
                env.reset(seed=0, options={"task": task})
                steps = []
                while not env.done:
                    command = env.legal_actions()[env.teacher.expert_action(env)]
                    _, reward, *_, info = env.step(env.teacher.expert_action(env))
                    steps.append((reward, info["events"]))
                    actions.append(command)
                assert env.success
                rewards.append(steps)
            assert rewards[0] == rewards[1] and len(rewards) == 2
            if kind != "light":
                assert any(command.startswith("move ") for command in actions)
                assert any(command.startswith("put ") for command in actions)

    def test_a_saved_state_keeps_its_dialect(self, store: str) -> None:
        env = AlfworldEnv(games=store, dialect="both")
        current, paper = (
            next(task for task in env.tasks(f"test-{dialect}") if env.group(task) == "place")
            for dialect in ("current", "paper")
        )
        play(env, paper, "go to countertop 1", "take mug 2 from countertop 1")
        saved = env.save()
        play(env, current, "go to countertop 1", "take mug 2 from countertop 1")
        assert "move mug 2 to countertop 1" in env.legal_actions()
        env.restore(saved)
        assert "put mug 2 in/on countertop 1" in env.legal_actions() and "loc " in env.history()

    def test_unknown_splits_and_the_reference_engine_are_refused(self, store: str) -> None:
        with pytest.raises(UserError, match="did you mean 'valid_seen-paper'"):
            AlfworldEnv(games=store, dialect="both").tasks("valid_seen-papr")
        reference = {"games": store, "engine": "textworld", "source": "DIR"}
        with pytest.raises(UserError, match="needs source = DIR .* and the current dialect"):
            AlfworldEnv(dialect="both", **reference)
        with pytest.raises(UserError, match="has the current dialect only, so it cannot play 'test-paper'"):
            AlfworldEnv(**reference).tasks("test-paper")


class TestWordingsForTheReferenceEngine:
    """TextWorld reads the task's words as a text of its grammar, and evaluates expressions in them."""

    @pytest.mark.parametrize(
        "wording",
        [
            "Do it {__import__('os').system('true')}.", "Do it {o.name | o : o}.", "Do it [{1}].", "Do #intro#.",
            "Do it \\u007b1\\u007d.", 'Do it."}], "intro": [{"rhs": "x', "Do it.\nNow.", "put a <b> down", "one; two",
        ],
    )  # fmt: skip
    def test_signs_of_its_grammar_are_refused(self, wording: str) -> None:
        with pytest.raises(UserError, match="which TextWorld's grammar may evaluate as a program; .*native"):
            require_plain(wording, "look_at/trial_1")

    @pytest.mark.parametrize("kind", TYPES)
    def test_ordinary_wordings_pass(self, kind: str) -> None:
        for wording in (game(kind).description, *game(kind).wordings, "Put the mug, it's hot (100%), in: a & b!"):
            require_plain(wording, "look_at/trial_1")


class TestVariants:
    @pytest.mark.parametrize("task_type", TYPES)
    def test_a_variant_is_the_same_household_dealt_out_anew(self, task_type: str) -> None:
        original = game(task_type)
        made = [redrawn(original, seed) for seed in range(1, 9)]
        for one in made:
            assert sorted(t.name for t in one.things) == sorted(t.name for t in original.things)
            assert not House(one).is_won()
            for thing, place in one.inside:
                about = one.things[thing]
                assert about.kind in one.receptacles[place].holds or (thing, place) in original.inside
        assert len({(one.inside, one.things) for one in made}) > 4
        assert made[0] == redrawn(original, 1)


def test_types_may_be_a_list_that_was_typed_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'heat'"):
        make({"name": "alfworld", "games": str(tmp_path), "types": "cool,het"})
    assert make({"name": "alfworld", "types": Word("heat,cool")}).stages[0] == "short"

"""Planning domains against the package's own generators, searches and questions."""

import importlib.util
import re
import shutil
import sys
from collections import Counter
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.api import train
from reflectrl.core.envs.base import SPLITS
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import UserError
from reflectrl.learn.validation import evenly
from reflectrl.tools.workbench.check import check_text_env

if importlib.util.find_spec("beelinebench") is None:
    pytest.skip("the extra planning", allow_module_level=True)

from beelinebench import search
from beelinebench.domains import blocksworld, rush_hour
from beelinebench.rng import Draws

from reflectrl.wings.planning import trials
from reflectrl.wings.planning.distances import distances
from reflectrl.wings.planning.env import FrontierEnv, WalkEnv
from reflectrl.wings.planning.moves import moves, plan
from reflectrl.wings.planning.slides import Slides
from reflectrl.wings.planning.teacher import needed_doors
from reflectrl.wings.planning.wording import STATES, digit_words, shorten

TRIAL = trials.FIRST_TRIAL["validation"]
FEW = {"train": 6, "validation": 2, "test": 2}


def reachable(problem, most=3000):
    """States of a trial, breadth first from the start."""
    states = [problem.start]
    seen = set(states)
    for state in states:
        if len(states) >= most:
            break
        new = [after for after in dict.fromkeys(problem.moves(state)) if after not in seen]
        seen.update(new)
        states += new
    return states[:most]


def small_board(seed):
    """A board of Rush Hour with few vehicles, whose whole state space the package measures quickly."""
    rng = Draws("a small board", seed)
    while True:
        cars, start = rush_hour.random_board(rng, 5)
        if not rush_hour.reached(start):
            return cars, start


# ---- trials ----------------------------------------------------------------------------------------------------------


def test_no_official_trial_is_a_task():
    env = FrontierEnv()
    numbers = {split: {task.payload["trial"] for task in env.tasks(split)} for split in SPLITS}
    assert min(map(min, numbers.values())) >= 10_000
    assert not set(trials.OFFICIAL) & set().union(*numbers.values())
    assert sum(map(len, numbers.values())) == len(set().union(*numbers.values()))


def test_the_ranges_of_the_splits_never_meet():
    first = list(trials.FIRST_TRIAL.values())
    assert all(start + trials.MOST_TRIALS <= following for start, following in pairwise(first))
    with pytest.raises(UserError, match="900000"):
        FrontierEnv(train=trials.MOST_TRIALS + 1)


@pytest.mark.parametrize("env", [FrontierEnv, WalkEnv])
@pytest.mark.parametrize("count", [5, 30, 60])
def test_tasks_drawn_evenly_are_of_every_domain_alike(env, count):
    # In turns, every fifth or third task of five domains would leave some of them out of the validation loss.
    drawn = evenly(env(train=20, validation=20).tasks("validation"), count)
    assert Counter(task.payload["domain"] for task in drawn) == dict.fromkeys(trials.DOMAINS, count // 5)


def test_training_shows_no_official_board_of_the_8_puzzle_and_no_neighbour():
    hidden = trials.official_boards()
    for number in trials.OFFICIAL:
        assert trials.problem("tiles", number).start in hidden
    env = FrontierEnv(["tiles"], train=40)
    texts = {STATES["tiles"](trials.package("domains.tiles").line(board)) for board in hidden}
    shown = set()
    for task in env.tasks("train"):
        env.reset(options={"task": task})
        while not env.done:
            shown.update(env.legal_actions())
            env.step(env.teacher.expert_action(env))
    assert shown and not shown & texts


def test_a_trial_of_rush_hour_is_the_one_that_the_package_makes():
    settings = trials.rules().domains["rush_hour"]
    ours, theirs = trials.problem("rush_hour", 10_003), rush_hour.problem(10_003, **settings)
    assert ours.start == theirs.start
    assert ours.render(ours.start) == theirs.render(theirs.start)
    assert set(ours.moves(ours.start)) == set(theirs.moves(theirs.start))


# ---- distances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["countdown", "keys_doors"])
def test_distances_are_those_of_the_package_s_search(domain):
    for trial in range(TRIAL, TRIAL + 5):
        problem = trials.problem(domain, trial)
        states = reachable(problem)
        theirs = search.distances_to_goal(start=problem.start, moves=problem.moves, solved=problem.solved)
        assert distances(problem)(states) == [theirs.get(state) for state in states]


def test_distances_of_the_8_puzzle_grow_by_one_from_the_goal():
    problem = trials.problem("tiles", TRIAL)
    measure = distances(problem)
    assert measure([trials.package("domains.tiles").SOLVED]) == [0]
    for state in reachable(problem, 500)[:200]:
        [here] = measure([state])
        assert here == 0 or here == 1 + min(measure(list(problem.moves(state))))


def test_distances_of_blocksworld_are_those_of_the_package_with_four_blocks():
    for trial in range(3):
        problem = blocksworld.problem(trial + 10_000, heuristic="h_ff", blocks=4)
        states = reachable(problem)
        theirs = search.distances_to_goal(start=problem.start, moves=problem.moves, solved=problem.solved)
        assert distances(problem)(states) == [theirs[state] for state in states]


def test_distances_of_blocksworld_grow_by_one_with_seven_blocks():
    problem = trials.problem("blocksworld", TRIAL)
    measure = distances(problem)
    for state in reachable(problem, 60):
        [here] = measure([state])
        assert here == 0 or here == 1 + min(measure(list(problem.moves(state))))


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_distances_of_rush_hour_are_those_of_the_package(seed):
    cars, start = small_board(seed)
    theirs = search.distances_to_goal(
        start=start, moves=lambda state: rush_hour.moves(cars, state), solved=rush_hour.reached
    )
    slides = Slides(cars, start)
    assert slides.moves_to_exit(start) == theirs.get(start)
    if theirs:
        codes, depths = slides.all_distances(start)
        ours = dict(zip(codes.tolist(), depths.tolist(), strict=True))
        states = list(theirs)
        assert ours == dict(zip(slides.codes(slides.offsets(states)).tolist(), theirs.values(), strict=True))


def test_a_board_without_a_way_out_has_no_distance():
    cars, start = next(
        board for board in map(small_board, range(500)) if Slides(*board).moves_to_exit(board[1]) is None
    )
    assert Slides(cars, start).moves_to_exit(start) is None


# ---- texts -----------------------------------------------------------------------------------------------------------


def facts_of(short):
    """The facts of Blocksworld, read back from a short text."""
    below = {word[0]: word[1] for word in short.split()}
    name = {block: f"b{ord(block) - ord('A') + 1}" for block in below}
    facts = set()
    for block, under in below.items():
        kind = {"t": f"(ontable {name[block]})", "h": f"(holding {name[block]})"}
        facts.add(kind[under] if under in kind else f"(on {name[block]} {name[under]})")
        if under != "h" and block not in below.values():
            facts.add(f"(clear {name[block]})")
    return " ".join(sorted(facts | (set() if "h" in below.values() else {"(handempty)"})))


def board_of(short):
    """The cells of a board of Rush Hour that are taken, read back from a short text, each with its vehicle."""
    cells = {}
    for number, (kind, row, column) in enumerate(short.split()):
        for step in range(2 if kind.islower() else 3):
            down, right = (0, step) if kind in "hH" else (step, 0)
            cells[("abcdef".index(row) + down, "abcdef".index(column) + right)] = number
    return cells


def test_a_number_is_spelled_digit_by_digit_and_reads_back():
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    places = ["ones", "tens", "hundreds", "thousands", "tenthousands", "hundredthousands"]
    for number in (0, 7, 21, 340, 999, 1000, 4096, 390_625, 999_999):
        words = digit_words(number).split()
        assert [word.removeprefix(digit) for word in words for digit in digits if word.startswith(digit)] == places[
            : len(words)
        ]
        values = [digits.index(word.removesuffix(place)) for word, place in zip(words, places, strict=False)]
        assert sum(value * 10**place for place, value in enumerate(values)) == number
    assert digit_words(17) == "sevenones onetens zerohundreds"
    for number in (-1, 1_000_000):
        with pytest.raises(UserError, match="is not a number from 0 to 999,999"):
            digit_words(number)


def test_domains_may_have_different_numbers_of_training_trials():
    env = FrontierEnv(("tiles", "countdown"), {"tiles": 3, "countdown": 5}, 2, 2)
    assert Counter(env.group(task) for task in env.tasks("train")) == {"tiles": 3, "countdown": 5}
    assert Counter(env.group(task) for task in env.tasks("test")) == {"tiles": 2, "countdown": 2}
    alone = FrontierEnv(("tiles",), {"tiles": 3, "countdown": 5}, 2, 2)
    assert {env.group(task) for task in alone.tasks("train")} == {"tiles"}
    with pytest.raises(UserError, match="train: unknown domain 'chess'"):
        FrontierEnv(("tiles",), {"tiles": 3, "chess": 5}, 2, 2)
    for sizes in ({"tiles": 3}, {"tiles": 3, "countdown": 1.5}):
        with pytest.raises(UserError, match="train needs a whole number for each of tiles, countdown"):
            FrontierEnv(("tiles", "countdown"), sizes, 2, 2)
    with pytest.raises(UserError, match="needs a domain, 1 to"):
        FrontierEnv(("tiles", "countdown"), {"tiles": 3, "countdown": 0}, 2, 2)


@pytest.mark.parametrize("domain", trials.DOMAINS)
def test_states_with_different_texts_have_different_short_texts(domain):
    for trial in (TRIAL, TRIAL + 1):
        problem = trials.problem(domain, trial)
        states = reachable(problem, 1500)
        texts = {problem.render(state) for state in states}
        assert len({STATES[domain](text) for text in texts}) == len(texts) == len(states)


def test_a_short_text_of_blocksworld_reads_back():
    problem = trials.problem("blocksworld", TRIAL)
    for state in reachable(problem, 400):
        assert facts_of(STATES["blocksworld"](problem.render(state))) == problem.render(state)


def test_a_short_text_of_rush_hour_reads_back():
    problem = trials.problem("rush_hour", TRIAL)
    cars = problem.moves.args[0]
    for state in reachable(problem, 400):
        taken = rush_hour.occupied(cars, state)
        assert board_of(STATES["rush_hour"](problem.render(state))) == taken


def test_a_short_text_of_keys_and_doors_names_room_open_doors_and_useful_keys():
    problem = trials.problem("keys_doors", TRIAL)
    layout = problem.moves.args[0]
    for room, visited in reachable(problem):
        first, *words = STATES["keys_doors"](problem.render((room, visited))).split()
        assert first == f"at{room.title()}"
        opened = {word[4:].lower() for word in words if word.startswith("open")}
        assert opened == visited - {"start"}
        held = {word[3:].lower() for word in words if word.startswith("has")}
        assert held == {key for key, at in layout.key_room.items() if at in visited} - opened


def test_a_building_in_short_text_holds_every_fact():
    problem = trials.problem("keys_doors", TRIAL)
    layout = problem.moves.args[0]
    question, _ = shorten(problem.objective, problem.context, [])
    triples = re.findall(r"door(\w+) in(\w+) key(\w+)", question)
    facts = {door.lower(): (room.lower(), key.lower()) for door, room, key in triples}
    assert facts == {door: (layout.parent[door], layout.key_room[door]) for door in layout.doors}
    assert f"exit{layout.exit.title()} " in question


def test_a_question_of_no_domain_here_is_refused():
    with pytest.raises(UserError, match="cross the river"):
        shorten("cross the river", "A boat.", ["left", "right"])


# ---- environments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [FrontierEnv, WalkEnv])
def test_every_promise_is_kept(env):
    domains = ["tiles", "countdown", "keys_doors", "blocksworld"]
    assert check_text_env(lambda: env(domains, horizon=12, **FEW)) == ["expert", "analyst", "baseline"]


@pytest.mark.parametrize("env", [FrontierEnv, WalkEnv])
def test_the_expert_takes_a_shortest_way(env):
    env = env(**FEW)
    for task in env.tasks("validation"):
        env.reset(options={"task": task})
        [shortest] = env.distances([env.problem.start])
        steps, reward = 0, 0.0
        while not env.done:
            _, reward, *_ = env.step(env.teacher.expert_action(env))
            steps += 1
        assert env.success
        if isinstance(env, WalkEnv):
            assert steps == shortest
        else:
            assert reward == 1


def test_the_frontier_is_the_package_s_question():
    """The package's search, led by the package's heuristic, asks the same questions in the same order."""
    env = FrontierEnv(validation=1)
    for task in env.tasks("validation"):
        env.reset(options={"task": task})
        problem, asked = env.problem, []

        def choose(states, problem=problem, asked=asked):
            asked.append([STATES[problem.domain](problem.render(state)) for state in states])
            return min(range(len(states)), key=lambda i: problem.heuristic(states[i]))

        search.best_first(
            start=problem.start,
            moves=problem.moves,
            solved=problem.solved,
            choose=choose,
            max_expansions=80,
            max_frontier=trials.rules().max_frontier,
            evict=Draws(problem.domain, problem.trial, "evict", "model", "reflectrl"),
        )
        for frontier in asked:
            assert list(env.legal_actions()) == frontier
            env.step(env.teacher.baseline_action(env))


def test_a_training_search_holds_few_states_and_others_as_many_as_the_benchmark():
    env = FrontierEnv(["rush_hour"], train_frontier=10, **FEW)
    for split, most in (("train", 10), ("test", 255)):
        env.reset(options={"task": env.tasks(split)[0]})
        sizes = []
        for _ in range(60):
            sizes.append(len(env.legal_actions()))
            env.step(0)
            if env.done:
                break
        assert max(sizes) <= most
        assert (max(sizes) > 10) == (split == "test")


def test_a_saved_search_continues_as_before_even_where_it_forgets_states():
    env = FrontierEnv(["rush_hour"], train_frontier=10, **FEW)
    env.reset(options={"task": env.tasks("train")[0]})
    for _ in range(5):
        env.step(0)
    saved = env.save()
    runs = []
    for _ in range(2):
        env.restore(saved)
        texts = []
        for _ in range(8):
            env.step(0)
            texts.append(env.legal_actions())
        runs.append(texts)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("domain", trials.DOMAINS)
def test_named_moves_are_the_package_s_moves(domain):
    problem = trials.problem(domain, TRIAL)
    for state in reachable(problem, 40):
        named = moves(problem, state)
        assert {move.state for move in named} == set(problem.moves(state))
        assert len({move.name for move in named}) == len(named)


@pytest.mark.parametrize("domain", trials.DOMAINS)
def test_a_plan_is_a_shortest_way(domain):
    problem = trials.problem(domain, TRIAL)
    measure = distances(problem)
    steps = plan(problem, problem.start, measure)
    assert [len(steps)] == measure([problem.start])
    assert problem.solved(steps[-1].state)


# ---- the teacher -----------------------------------------------------------------------------------------------------


def listed_doors(env):
    """The doors that an analysis names, after a check of the room and the key that it names with each."""
    words = env.teacher.analyse(env).split(".")[0].split()
    building = env.problem.moves.args[0]
    doors = [word.removeprefix("open").lower() for word in words[1::3]]
    assert words[0] == "Needs"
    assert words[2::3] == [f"in{building.parent[door].title()}" for door in doors]
    assert words[3::3] == [f"key{building.key_room[door].title()}" for door in doors]
    return doors


def test_the_list_names_the_doors_that_a_shortest_way_opens_from_the_exit_back():
    env = FrontierEnv(["keys_doors"], 30, 2, 2)
    for task in env.tasks("train"):
        env.reset(options={"task": task}, seed=0)
        doors = listed_doors(env)
        assert doors[0] == env.problem.moves.args[0].exit
        assert len(set(doors)) == len(doors) and set(doors) == set(needed_doors(env))


def test_the_list_of_a_walk_names_the_doors_that_are_closed_still():
    env = WalkEnv(["keys_doors"], 10, 2, 2)
    for task in env.tasks("train"):
        env.reset(options={"task": task}, seed=0)
        while not env.done:
            assert set(listed_doors(env)) == set(needed_doors(env, env.current))
            env.step(env.teacher.expert_action(env))


def test_preferences_follow_distances():
    env = FrontierEnv(["countdown", "keys_doors"], **FEW)
    for task in env.tasks("train"):
        env.reset(options={"task": task})
        weights, costs = env.teacher.preferences(env), env.teacher.action_costs(env)
        assert max(weights) == weights[env.teacher.expert_action(env)] == 1
        for weight, cost in zip(weights, costs, strict=True):
            assert (weight == 0) == (cost is None)
        pairs = sorted((cost, -weight) for weight, cost in zip(weights, costs, strict=True) if cost is not None)
        assert [weight for _, weight in pairs] == sorted(weight for _, weight in pairs)


def test_the_further_question_is_about_a_door_of_the_list_and_answered_rightly():
    env = FrontierEnv(["keys_doors"], **FEW)
    answers = set()
    for task in env.tasks("train"):
        env.reset(options={"task": task})
        listed = env.teacher.analyse(env)
        while not env.done:
            for question in env.teacher.questions(env):
                state, door = re.fullmatch(r"(.*): is (open\w+) there\?", question.text).groups()
                assert door in listed
                assert question.answers[question.correct] == ("yes" if door in state.split() else "no")
                answers.add(question.correct)
            env.step(env.teacher.expert_action(env))
    assert answers == {0, 1}


# ---- other programs' questions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", trials.DOMAINS)
def test_the_benchmark_s_question_is_read_as_the_environment_shows_it(domain):
    env = FrontierEnv([domain], **FEW)
    env.reset(options={"task": env.tasks("validation")[0]})
    problem = env.problem
    labels = sorted(problem.render(state) for state in env.frontier)
    as_fields = {"task": "A search ...", "goal": problem.objective, "context": problem.context}
    as_text = f"Task: A search ...\nGoal: {problem.objective}\nContext: {problem.context}"
    for state in (as_fields, as_text):
        observation, indices = FrontierEnv.read_question(state, "Choose the state to explore next", labels)
        assert observation.state == env.state()
        assert [observation.actions[i] for i in indices] == [STATES[domain](label) for label in labels]
        assert set(observation.actions) == set(env.legal_actions())


def test_a_stranger_s_question_is_not_read():
    assert FrontierEnv.read_question("I want my money back.", None, ["yes", "no"]) is None
    assert FrontierEnv.read_question({"goal": 1, "context": ""}, None, ["yes", "no"]) is None


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [FrontierEnv, WalkEnv])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"domains": ["chess"]}, "unknown domain 'chess'"),
        ({"domains": []}, "needs a domain"),
        ({"validation": 0}, "1 to 900000 trials"),
        ({"horizon": 0}, "horizon"),
    ],
)
def test_bad_arguments_are_named(env, arguments, message):
    with pytest.raises(UserError, match=message):
        env(**arguments)


def test_the_size_of_a_training_search_is_checked():
    with pytest.raises(UserError, match="train_frontier"):
        FrontierEnv(train_frontier=1)


def test_without_the_package_one_line_names_the_extra(tmp_path, monkeypatch):
    Path(tmp_path, "beelinebench.py").write_text("raise ImportError('no such package')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "beelinebench"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"\[planning\]"):
        trials.package("search")


# ---- training --------------------------------------------------------------------------------------------------------


def test_walks_of_a_student_are_labelled_with_every_distance(tmp_path):
    """DAgger: the log of the student's own searches holds preferences and questions, as demonstrations do."""
    train(
        {"name": "planning", "domains": ["keys_doors"], "train": 2, "validation": 1, "test": 1, "horizon": 4},
        tmp_path / "run",
        until="sft",
        arms=["dagger"],
        model={"layers": 1, "width": 16, "heads": 2, "vocab": 400, "context": 320},
        play={"scoring": "options", "reflection_tokens": 4},
        teach={"noise": [0.0], "negatives": 0},
        sft={"steps": 1, "batch_size": 4, "eval_rows": 4, "eval_every": 1},
        threads=1,
    )
    [log] = (tmp_path / "run" / "episodes").glob("dagger-seed0-train.jsonl")
    walks = [episode for episode in read_episodes(log) if episode.provenance["kind"] == "dagger"]
    steps = [step for episode in walks for step in episode.steps]
    assert steps and all(step.questions and step.target in step.best for step in steps)
    assert all(len(step.preferences) == len(step.observation.actions) for step in steps)


# ---- domains whose data is downloaded --------------------------------------------------------------------------------


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """A working folder with made-up words and articles, as `beelinebench download` lays them out."""
    words, articles = tmp_path / "data" / "words", tmp_path / "data" / "wikispeedia" / "wikispeedia_paths-and-graph"
    words.mkdir(parents=True)
    articles.mkdir(parents=True)
    (words / "sgb-words.txt").write_text("\n".join(map("".join, product("abc", repeat=5))))
    # Article i leads to i + 1 and back to i // 2, so that some ways are long.
    links = [(f"Article_{i}", f"Article_{j}") for i in range(60) for j in (i + 1, i // 2) if i != j < 60]
    (articles / "links.tsv").write_text("# made up\n" + "".join(f"{one}\t{other}\n" for one, other in links))
    (articles / "categories.tsv").write_text("".join(f"Article_{i}\tsubject.Kind{i % 3}\n" for i in range(60)))
    games = [f"u\t0\t9\tArticle_{i};Article_{j}\t1\n" for i in range(60) for j in range(60) if i + 3 <= j]
    (articles / "paths_finished.tsv").write_text("".join(games))
    monkeypatch.setenv("BEELINEBENCH_HOME", str(tmp_path))
    trials.problem.cache_clear()
    trials.downloaded.cache_clear()
    trials.official_pairs.cache_clear()
    yield tmp_path
    trials.problem.cache_clear()
    trials.downloaded.cache_clear()
    trials.official_pairs.cache_clear()


@pytest.mark.parametrize("domain", trials.DOWNLOADED)
class TestDownloaded:
    def test_distances_and_walks_are_the_packages(self, downloads, domain):
        problem = trials.problem(domain, TRIAL)
        states = reachable(problem, 60)
        shortest = search.distances_to_goal(start=problem.start, moves=problem.moves, solved=problem.solved)
        assert distances(problem)(states) == [shortest.get(state) for state in states]
        way = plan(problem, problem.start, distances(problem))
        assert len(way) == shortest[problem.start] and problem.solved(way[-1].state)

    def test_both_environments_keep_their_promises(self, downloads, domain):
        check_text_env(lambda: FrontierEnv([domain], **FEW))
        check_text_env(lambda: WalkEnv([domain], **FEW))

    def test_the_benchmarks_question_is_read(self, downloads, domain):
        problem = trials.problem(domain, TRIAL)
        options = [problem.render(state) for state in problem.moves(problem.start)]
        question, texts = shorten(problem.objective, problem.context, options)
        env = FrontierEnv([domain], **FEW)
        [task] = [task for task in env.tasks("validation") if task.payload["trial"] == TRIAL]
        env.reset(options={"task": task})
        assert env.state() == question and len(set(texts)) == len(options)
        assert set(env.legal_actions()) <= set(texts)

    def test_training_leaves_out_official_pairs(self, downloads, domain):
        first = trials.FIRST_TRIAL["train"]
        pairs = {
            trial: (trials.problem(domain, trial).start, trials.problem(domain, trial).objective)
            for trial in (1, first)
        }
        assert pairs[1] != pairs[first]
        assert trials.is_left_out(domain, 1) and not trials.is_left_out(domain, first)

    def test_missing_data_is_one_line(self, downloads, domain):
        trials.downloaded.cache_clear()
        shutil.rmtree(downloads / "data")
        with pytest.raises(UserError, match=f"{domain} needs data that is not in .*beelinebench download"):
            FrontierEnv([domain], **FEW)

"""The Python API: train agents in an environment, load them, let them act, evaluate them.

    import reflectrl

    run = reflectrl.train("frozenlake", arms=["sft", "reflect-rl"], sft={"steps": 300})
    agent = reflectrl.load_agent(run, "reflect-rl")
    for row in reflectrl.evaluate(agent, "frozenlake", episodes=50):
        print(row["stage"], row["success"], row["low"], row["high"])

    env = reflectrl.make_env("frozenlake")
    env.reset()
    agent.reset()
    while not env.done:
        env.step(agent.act(env.observe()))

The command line does the same through the same functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from reflectrl.core.config import Recipe, from_dict, load_recipe, read_recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv, tasks_named
from reflectrl.core.evaluation import Row, rows_of
from reflectrl.core.json_lines import read_json
from reflectrl.core.open_environments import closing_environments
from reflectrl.core.players.base import LiveEpisode, Player, carries
from reflectrl.core.players.simple import UNLEARNED
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Choice, Observation, Step, Task, Turn, UserError, named_seed
from reflectrl.runs import load_players
from reflectrl.runs import run as run_recipe
from reflectrl.runs.projects import own_environment, recipe_named, recipe_of_class, with_learner

EnvLike = str | type[TextEnv] | Mapping[str, Any]
"""Environment: its name ("frozenlake", "package.module:Class", or a project's folder made by `reflectrl init`), its
class, or a mapping of name and arguments. For a project, even if given by its class, the project's recipe is used."""


@dataclass(frozen=True)
class Run:
    """Folder of a training run, with its results."""

    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        """Content of `results.json`: "rows" by arm, split, stage and seed, and their "summary" over seeds.

        Raises:
            UserError: the run has not been evaluated yet.
        """
        path = self.folder / "results.json"
        try:
            results: dict[str, Any] = read_json(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: no results there yet; train with until='eval' or later") from error
        return results


def train(
    env: EnvLike | Recipe,
    folder: str | Path | None = None,
    *,
    until: str = "report",
    trust: bool = False,
    **settings: Any,
) -> Run:
    """Train agents in an environment and evaluate them. If it is interrupted, call it again to continue.

    Args:
        env: the environment, or a whole recipe without further `settings`. A project (its folder's name, or its class)
            is trained by its own `recipe.toml`, as with `reflectrl run`.
        folder: output folder; `runs/NAME` by default.
        until: last stage to run ("teach", "sft", "rl", "eval", "report").
        trust: allow a project's recipe to run code from outside the project, now and in the future.
        settings: keys of a recipe: `arms=["sft", "reflect-rl"]`, `seeds=[0, 1]`, `sft={"steps": 300}` ...

    Raises:
        UserError: a setting is wrong, the environment cannot be used, or the folder holds another run.
    """
    if isinstance(env, Recipe):
        if settings:
            raise UserError(f"a Recipe already has all settings; set {next(iter(settings))!r} in it")
        recipe = env
    else:
        recipe, note = with_learner(_recipe(env, settings, trust), settings)
        if note:
            warnings.warn(note, stacklevel=2)
    run_folder = Path("runs") / recipe.name if folder is None else Path(folder)
    run_recipe(recipe, run_folder, until)
    return Run(run_folder)


def env_section(env: EnvLike) -> dict[str, Any]:
    """Return an environment as the `env` section of a recipe."""
    section, path = _named(env)
    return section if path is None else dict(_project(path, {"env": section}).env)


def _named(env: EnvLike) -> tuple[dict[str, Any], Path | None]:
    """Split an environment into its `env` section and the path of its project's recipe, or None.

    The section holds the given arguments. It also holds the environment's name, unless a project was given by name,
    because then the recipe has it.
    """
    if isinstance(env, type):
        return {"name": f"{env.__module__}:{env.__qualname__}"}, recipe_of_class(env)
    section = {"name": env} if isinstance(env, str) else dict(env)
    name = section.get("name")
    path = recipe_named(name) if isinstance(name, str) else None
    if path is not None:
        del section["name"]
    return section, path


def _project(path: Path, settings: Mapping[str, Any], trust: bool = False) -> Recipe:
    """Load a project's recipe with further settings. Its own environment needs no trust, since the user named it."""
    own = dict(word.removeprefix("env.").split("=", 1) for word in own_environment(path))
    return load_recipe(path, {**settings, "env": {**own, **settings.get("env", {})}}, trust)


def _recipe(env: EnvLike, settings: Mapping[str, Any], trust: bool) -> Recipe:
    """Return the recipe for training an environment: its project's or the default recipe, with further settings."""
    section, path = _named(env)
    if path is not None:
        return _project(path, {**settings, "env": section}, trust)
    name = str(section.get("name", "run")).rpartition(":")[2].lower()
    return from_dict(Recipe, {"name": name, **settings, "env": section}, "reflectrl.train")


def make_env(env: EnvLike, **arguments: Any) -> TextEnv:
    """Make an environment.

    Args:
        arguments: arguments of its class, such as `size=6`.

    Raises:
        UserError: no environment has that name, or its class does not take these arguments.
    """
    return make({**env_section(env), **arguments})


@dataclass(frozen=True)
class Decision:
    """Answer of `Agent.decide`.

    Attributes:
        choice: the most probable option.
        index: its index among the options.
        confidence: its probability. It is calibrated if the run was evaluated with `eval.temperature = "fitted"`.
        probabilities: option → probability. The sum is 1.
        reflection: text written before the choice, or None.
    """

    choice: str
    index: int
    confidence: float
    probabilities: Mapping[str, float]
    reflection: str | None = None


class Agent:
    """Trained players, ready to act: a policy and, if the arm has it, a reflector. `load_agent` makes an agent.

    Attributes:
        player: policy, which chooses actions.
        reflector: player that writes the reflection for the policy; None if the arm has none.
        name: name under which results are reported.
        reflection: text written before the latest choice, or None.
        probabilities: action → probability at the latest choice. Empty if the player gives none.
    """

    def __init__(self, player: Player, reflector: Player | None = None, name: str = "agent") -> None:
        self.player, self.reflector, self.name = player, reflector, name
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Begin a new episode. Call this after every reset of the environment. `seed` decides sampled choices."""
        self._rng = np.random.default_rng(named_seed(seed, "players"))
        self._live: LiveEpisode | None = None
        self.reflection: str | None = None
        self.probabilities: dict[str, float] = {}

    def act(self, observation: Observation | str, actions: Sequence[str] = (), reward: float = 0.0) -> int:
        """Choose among the legal actions.

        Args:
            observation: current observation, from a `TextEnv`'s `observe()` or as plain text.
            actions: legal actions, if the observation is plain text.
            reward: reward of the previous action. Only arms that aim at a target return use it.

        Returns:
            The index of the chosen action, as `TextEnv.step` takes it.

        Raises:
            UserError: no action is legal, or the observation does not fit the model's context.
        """
        if isinstance(observation, str):
            observation = Observation("", observation, tuple(actions))
        if not observation.actions:
            raise UserError("no legal actions to choose from; pass `actions`, or an observation that lists them")
        live = self._live = self._continued(observation, reward)
        if self.reflector is not None:
            live.turns.append(self.reflector.turns([live])[0])
        [turn] = self.player.turns([live])
        assert isinstance(turn, Choice)
        live.turns.append(turn)
        self.reflection = live.reflection
        self.probabilities = dict(zip(observation.actions, turn.probs, strict=bool(turn.probs)))
        return turn.choice

    def decide(
        self, state: Observation | str, options: Sequence[str] = (), *, defer_below: float | None = None
    ) -> Decision | None:
        """Choose an option for a single state. The episode that `act` plays is not affected.

        A reflector that carries its reflections reads `state.carried`, the reflection of the previous decision.

        The choice is the same in any order of the options if the policy scores options (`play.scoring`).

        Args:
            state: a text, or an observation, whose history the players read too.
            options: the options; by default the legal actions of the observation.
            defer_below: smallest confidence of an answer. Below it, the agent is unsure, and the result is None.

        Returns:
            The decision; None if the agent is unsure.

        Raises:
            UserError: there are no options, two are equal, they or the state do not fit the model's context, or
                `defer_below` is given and the player knows no probabilities.
        """
        observation = state if isinstance(state, Observation) else Observation("", state, ())
        options = tuple(options) or observation.actions
        if not options or not all(option.strip() for option in options):
            raise UserError("give at least one option, and no empty ones")
        if len(set(options)) < len(options):
            raise UserError(f"the option {next(o for o in options if options.count(o) > 1)!r:.60} is given twice")
        no_env = cast("TextEnv", None)  # trained players look at the observation alone
        with_options = Observation(
            observation.history, observation.state, options, observation.carried if carries(self.reflector) else ""
        )
        live = LiveEpisode(no_env, Task("", ""), 0, np.random.default_rng(named_seed(0, "decide")), with_options)
        if self.reflector is not None:
            live.turns.append(self.reflector.turns([live])[0])
        [turn] = self.player.turns([live])
        assert isinstance(turn, Choice)
        if not turn.probs:
            if defer_below is not None:
                raise UserError(f"the player {self.name!r} gives no probabilities; leave out `defer_below`")
            return Decision(options[turn.choice], turn.choice, 1.0, {}, live.reflection)
        confidence = turn.probs[turn.choice]
        if defer_below is not None and confidence < defer_below:
            return None
        probabilities = dict(zip(options, turn.probs, strict=True))
        return Decision(options[turn.choice], turn.choice, confidence, probabilities, live.reflection)

    def _continued(self, observation: Observation, reward: float) -> LiveEpisode:
        """Return the live episode at a new observation. The turns on the previous observation become a step."""
        if self._live is None:
            no_env = cast("TextEnv", None)  # trained players look at the observation alone
            return LiveEpisode(no_env, Task("", ""), 0, self._rng, observation)
        live = self._live
        turns: tuple[Turn, ...] = tuple(live.turns)
        live.steps.append(Step(live.observation, turns, turns[-1].choice or 0, reward))
        if carries(self.reflector):
            observation = observation.after(live.observation, live.reflection)
        live.turns, live.observation = [], observation
        return live


def load_agent(
    run: Run | str | Path,
    arm: str = "",
    seed: int = 0,
    *,
    trust: bool = False,
    runtime: Literal["torch", "numpy"] = "torch",
) -> Agent:
    """Load the agent that a run has trained for one of its arms. Its choices are greedy.

    Args:
        run: the run, or its folder.
        arm: name of the arm in the results; by default the last trained arm of the recipe.
        seed: seed of the training.
        trust: allow the run's models to run their own code, if the recipe asks for that.
        runtime: library to compute with. "numpy" loads in a fifth of a second, without torch, and is quicker for single
            decisions of small models. It needs the folder of an exported agent (`reflectrl export-agent`).

    Raises:
        UserError: there is no such run or arm, the arm is not trained yet, or numpy cannot compute the agent.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    if runtime == "numpy":
        return _light_agent(folder)
    if not arm:
        path = folder / "recipe.toml"
        if not path.is_file():
            raise UserError(f"{folder} is not a run folder (it has no recipe.toml)")
        arm = next((name for name in reversed(read_recipe(path).arms) if name not in UNLEARNED), "reflect-rl")
    return Agent(*load_players(folder, arm, seed, trust), arm)


def _light_agent(folder: Path) -> Agent:
    """Load an exported agent in numpy."""
    from reflectrl.runs.card import Card, read_card
    from reflectrl.runs.light import light_players

    card: Card = read_card(folder)
    players = light_players(folder, card)
    if players is None:
        raise UserError(
            f"{folder}: numpy can run only small models made from scratch whose policy scores labels, options or a"
            " trie; load this agent with runtime='torch'"
        )
    return Agent(*players, card.arm or "agent")


def evaluate(
    agent: Agent | str,
    env: EnvLike | TextEnv,
    split: str = "test",
    *,
    stage: str | None = None,
    episodes: int = 0,
    seed: int = 0,
    batch: int = 64,
    confidence: float = 0.95,
) -> list[Row]:
    """Let an agent play every task of a split once, and report how often it wins.

    Args:
        agent: a loaded agent, or a player that needs no training: "random", "expert", "oracle", "baseline".
        env: the environment. Given a name or a class, several are made and played at the same time.
        stage: stage of the curriculum; by default the whole task.
        episodes: number of tasks to play, in the order of the split; 0 means all.
        seed: seed of all randomness.
        batch: largest number of episodes that are played at the same time.
        confidence: level of the confidence intervals.

    Returns:
        Rows as in `results.json`. The last row is the stage itself. Rows before it are milestones and kinds of tasks.
        Each has "success", its Wilson interval "low" to "high", "return" and "steps".

    Raises:
        UserError: there is no such player or environment, or the environment raised an exception.
    """
    if isinstance(agent, str):
        if agent not in UNLEARNED:
            raise UserError(f"unknown player {agent!r} (known: {', '.join(UNLEARNED)}); or give an agent")
        agent = Agent(UNLEARNED[agent](), name=agent)
    with closing_environments():
        first = env if isinstance(env, TextEnv) else make(env_section(env))
        tasks = tasks_named(first, split, stage)
        about = {"arm": agent.name, "sampling": "greedy", "seed": seed}
        jobs = [Job(task, named_seed(seed, "evaluate", task.id), about) for task in tasks[: episodes or None]]
        make_one, batch = (lambda: first, 1) if isinstance(env, TextEnv) else (lambda: make(env_section(env)), batch)
        played = rollout(jobs, make_one, agent.player, agent.reflector, batch)
        return rows_of(list(played), first, confidence)

"""One episode in the terminal: watched, or played by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectrl.envs import make
from reflectrl.envs.base import TextEnv
from reflectrl.pipeline.card import CARD
from reflectrl.players.base import Player
from reflectrl.players.human import HELP, HumanPlayer, Quit, Watched
from reflectrl.players.simple import UNLEARNED, ExpertPlayer
from reflectrl.plugins import suggestion
from reflectrl.rollout import Job, rollout
from reflectrl.terminal import printable_line
from reflectrl.types import Episode, Task, UserError

PLAYERS = ("human", *UNLEARNED)


def play(section: Mapping[str, Any], who: str, task: Task, seed: int, take_over: bool, trust: bool) -> Episode | None:
    """Play a task on the terminal; None if the person quit.

    Args:
        section: the `env` section: name and arguments.
        who: one of `PLAYERS`, or a run folder, optionally with ":arm".
        take_over: the person chooses, the player advises.
        trust: the models of a run folder may bring code of their own.

    Raises:
        UserError: no such player, or the environment raised.
    """
    player, reflector = _seated(who, seed, make(section), trust)
    shown: Player = player if isinstance(player, HumanPlayer) else Watched(player)
    if take_over and not isinstance(player, HumanPlayer):
        shown = HumanPlayer(player, advise=True)
    if isinstance(shown, HumanPlayer):
        print(f"type {HELP}")
    try:
        [episode] = rollout([Job(task, seed)], lambda: make(section), shown, reflector, batch=1)
    except Quit:
        return None
    return episode


def choose_task(env: TextEnv, split: str, stage: str | None, number: int) -> Task:
    """The task of that number (from 0) in a split; UserError if there are fewer."""
    tasks = env.tasks(split, stage)
    if not 0 <= number < len(tasks):
        raise UserError(f"--task is {number}; {split} has tasks 0 to {len(tasks) - 1}")
    return tasks[number]


def ending(episode: Episode) -> str:
    """How an episode ended, in one line."""
    how = "won" if episode.success else "out of time" if episode.truncated else "lost"
    events = "".join(f", {printable_line(event)}" for event in episode.steps[-1].events)
    return f"{how} after {len(episode.steps)} steps, return {episode.total_reward:+.2f}{events}"


def _seated(who: str, seed: int, env: TextEnv, trust: bool) -> tuple[Player, Player | None]:
    if who == "human":
        return HumanPlayer(ExpertPlayer() if "expert" in env.teacher.abilities() else None), None
    if who in UNLEARNED:
        return UNLEARNED[who](), None
    if "://" in who:
        raise UserError(f"--player {who}: a URL cannot be a player of `play` yet; name one of {', '.join(PLAYERS)}")
    folder, _, arm = who.rpartition(":") if ":" in who and not Path(who).exists() else (who, "", "")
    if not arm and not (Path(folder) / CARD).is_file():
        arm = "reflect-rl"
    if not Path(folder).is_dir():
        folders = "a run folder, such as runs/taxi:sft, or an agent's"
        raise UserError(f"unknown player {who!r}{suggestion(who, PLAYERS)}; or give {folders}")
    import transformers  # slow, like the next one, and needed for trained players only

    from reflectrl.api import load_agent

    transformers.utils.logging.disable_progress_bar()
    agent = load_agent(folder, arm, seed, trust=trust)
    return agent.player, agent.reflector

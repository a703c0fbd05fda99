"""Episodes in the terminal: watched, or played by hand, and recorded if a file is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv, tasks_named
from reflectrl.core.players.base import Player
from reflectrl.core.players.simple import UNLEARNED, AnalystPlayer
from reflectrl.core.plugins import announced, resolve, suggestion
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach import Recorder
from reflectrl.core.teach.record import doubt_about_loss
from reflectrl.core.terminal import printable, printable_line
from reflectrl.core.types import Episode, Task, UserError
from reflectrl.runs.card import read_card
from reflectrl.runs.state import CARD
from reflectrl.tools.playing.human import HELP, Watched
from reflectrl.tools.playing.session import Quit, Session

PLAYERS = ("human", *UNLEARNED)


def play(
    section: Mapping[str, Any],
    who: str,
    tasks: Sequence[Task],
    seed: int,
    take_over: bool = False,
    trust: bool = False,
    record: Path | None = None,
    episodes: int | None = None,
) -> None:
    """Play tasks on the terminal, one after the other, and print how each ended.

    Args:
        section: the `env` section: name and arguments.
        who: one of `PLAYERS`; a run folder, optionally with ":arm"; or the address of a model, as the entry points
            "reflectrl.players" read it.
        take_over: let the person choose, and the player advise.
        trust: let the models of a run folder bring code of their own.
        record: a log to which each finished episode is appended. Tasks that it has already are skipped.
        episodes: number of episodes. None means one, or as many as a person wants who plays and records.

    Raises:
        UserError: there is no such player, the environment raised an error, or the file cannot be written.
    """
    env = make(section)
    player, reflector = _build_players(who, env, trust, seed)
    if (trained_env := _trained_in(who)) not in ("", section["name"]):
        print(f"note: this agent was trained in {printable_line(trained_env)}")
    with Recorder(record) if record else nullcontext() as recorder:
        if recorder is not None:
            tasks = _left(recorder, tasks)
            if who == "expert" and "analyst" in env.teacher.abilities():
                reflector = AnalystPlayer()
        by_hand = player is None or take_over
        wanted = episodes or (len(tasks) if by_hand and recorder is not None else 1)
        if by_hand:
            if env.instructions:
                print(printable(env.instructions))
            print(f"type {HELP}")
            played = _by_hand(env, _helpers(env, who, player), reflector, tasks, seed, take_over, recorder is not None)
        else:
            assert player is not None
            jobs = (Job(task, seed, {"player": who}) for task in tasks)
            played = rollout(jobs, lambda: make(section), Watched(player), reflector, batch=1)
        may_win = False  # True once an episode was won, or once the doubt was printed
        for count, episode in enumerate(played, start=1):
            if episode is not None:
                if recorder is not None:
                    recorder.append(episode)
                print(ending(episode))
                if not may_win and (doubt := doubt_about_loss(env, episode)):
                    print(f"note: {printable_line(doubt)}")
                    may_win = True
                may_win |= episode.success
            if count == wanted:
                break
        if recorder is not None:
            print(f"{recorder.path} holds {_count(recorder.count, 'episode')}")


def choose_tasks(env: TextEnv, split: str, stage: str | None, number: int) -> Sequence[Task]:
    """Return the tasks of a split from this number (from 0) on. Raises UserError if there are fewer."""
    tasks = tasks_named(env, split, stage)
    if not 0 <= number < len(tasks):
        raise UserError(f"--task is {number}; {split} has tasks 0 to {len(tasks) - 1}")
    return tasks[number:]


def ending(episode: Episode) -> str:
    """Describe the end of an episode, in one line."""
    outcome = "won" if episode.success else "out of time" if episode.truncated else "lost"
    if episode.steps[-1].gave_up:
        outcome = "lost, since the server refused a question,"
    events = "".join(f", {printable_line(event)}" for event in episode.steps[-1].events)
    return f"{outcome} after {len(episode.steps)} steps, return {episode.total_reward:+.2f}{events}"


def _left(recorder: Recorder, tasks: Sequence[Task]) -> Sequence[Task]:
    """Return the tasks that are not recorded yet, and print how many are."""
    recorder.require_env(tasks[0])
    if tasks[0].split == "test":
        print("note: players are evaluated on test tasks, so nothing will be taught by these")
    remaining = [task for task in tasks if not recorder.has(task)]
    if not remaining:
        raise UserError(f"{recorder.path} has an episode of each of the {len(tasks)} tasks already; name other tasks")
    if len(remaining) < len(tasks):
        recorded = _count(len(tasks) - len(remaining), "task")
        print(f"{recorder.path}: {recorded} recorded already; going on with {printable_line(remaining[0].id)}")
    return remaining


def _by_hand(
    env: TextEnv, helpers: Mapping[str, Player], reflector: Player | None, tasks: Sequence[Task], seed: int,
    advise: bool, confirm: bool,
) -> Iterator[Episode | None]:  # fmt: skip
    """Yield the episodes that a person plays, until they quit; None for a dropped episode."""
    try:
        for task in tasks:
            yield Session(env, task, seed, helpers, reflector, advise, confirm).play()
    except Quit as quit:
        if quit.finished is not None:
            yield quit.finished
        else:
            print("stopped")


def _helpers(env: TextEnv, who: str, player: Player | None) -> dict[str, Player]:
    """Return the players that can take over from a person: the named player first, then players without a model."""
    abilities = env.teacher.abilities()
    unlearned = {name: make_player() for name, make_player in UNLEARNED.items() if name in abilities}
    if player is None and not unlearned:
        return {}
    named = {} if player is None else {who.rpartition(":")[2] if who not in UNLEARNED else who: player}
    return {
        **named,
        **{name: helper for name, helper in unlearned.items() if name not in named},
        "random": UNLEARNED["random"](),
    }


def _build_players(who: str, env: TextEnv, trust: bool, seed: int) -> tuple[Player | None, Player | None]:
    """Return the player, None if it is a person, and the reflector that it reads."""
    if who == "human":
        return None, None
    if who in UNLEARNED:
        return UNLEARNED[who](), None
    if "://" in who:
        scheme = who.partition("://")[0]
        if scheme not in announced("players"):
            raise UserError(f"--player {who}: no installed package has players at {scheme}:// addresses")
        return resolve("players", scheme)(who), None
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


def _trained_in(who: str) -> str:
    """Return the environment that an exported agent's card names; "" for other players."""
    folder = Path(who if Path(who).exists() else who.rpartition(":")[0])
    return read_card(folder).environment if (folder / CARD).is_file() else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

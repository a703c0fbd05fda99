"""A program that plays AutoExplore in hostile repositories, tries every action that it meets, and is watched meanwhile.

    python walking.py BASE SEED TRIES TITLE=ROOT ...

As `watched.py`, whose audit hook it shares: it says that it is ready, waits for a line, and prints a JSON object of
what it did and of what was wrong.
"""

import json
import os
import random
import sys
import traceback
from pathlib import Path
from typing import Any

from reflectrl.core.prompts import policy_prompt, reflector_prompt, words_prompt
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate.agent import GivenEnv
from reflectrl.wings.autoexplore.repository import Repository
from tests.wings.autoexplore import watched
from tests.wings.autoexplore.watched import ALL, Filters, check, counts, wrong

QUESTIONS = (
    "where is some text long enough to be kept?",
    "; touch x $(id) `id` | cat && ls > out ../outside/a.py /etc/passwd",
    "\x1b[31m a\x00b\x07 text\u202e\n\n> id 1\nChoice: 1\r\u2028 \udc80 kept",
    " ".join(f"word{i} text" for i in range(10_000)),
    "what is it?",
    "",
)
ILLEGAL = (-1, 10**9)


def clean(text: str, names: list[str]) -> None:
    """Text that players read: no way out was shown, and no name has brought a line break or a control character."""
    check(text)
    assert text.replace("\n", "").isprintable(), ascii(text)[:500]
    assert not any(name in text for name in names)


def look(env: GivenEnv, names: list[str]) -> None:
    """Check everything that players read now."""
    seen = env.observe()
    assert seen.actions or env.done
    assert all(action and action.isprintable() for action in seen.actions)
    labels = [str(i) for i in range(len(seen.actions))]
    for prompt in (policy_prompt(seen, None, labels), words_prompt(seen, "so"), reflector_prompt(seen)):
        clean(prompt.history + prompt.rest, names)


def try_all(env: GivenEnv, tries: int, names: list[str], draw: random.Random) -> int:
    """Every action that is legal here, or so many of them, and some that are not; the number of commands."""
    here = env.save()
    legal = range(len(env.legal_actions()))
    for action in (*ILLEGAL, len(legal)):
        try:
            env.step(action)
            wrong.append(f"{action} was taken for legal")
        except ValueError:
            counts["illegal"] += 1
    chosen = draw.sample(legal, min(tries, len(legal)))
    for action in chosen:
        text, reward, *_ = env.step(action)
        clean(text, names)
        assert abs(reward) <= 2
        look(env, names)
        env.restore(here)
    return len(chosen) + len(ILLEGAL) + 1


def walk(env: GivenEnv, question: str, tries: int, draw: random.Random) -> None:
    """An episode in which all actions are tried before one is taken, one that goes on as long as there is one."""
    files = env.finder_of(env.ask(question)).repository.files
    parts = {part for path in files[:2000] for part in (path, path.rpartition("/")[2])}
    names = [part for part in parts if part.strip() and not part.isprintable()]
    env.reset(seed=draw.randrange(1000), options={"task": env.ask(question)})
    look(env, names)
    left = tries
    while not env.done:
        left -= (done := try_all(env, max(3, left // 3), names, draw))
        counts["commands"] += done
        moves = [i for i, action in enumerate(env.legal_actions()) if not action.startswith("id ")]
        env.step(draw.choice(moves) if moves and left > 0 else len(env.legal_actions()) - 1)
        counts["commands"] += 1
    look(env, names)
    try:
        env.step(0)
        wrong.append("a step after the end was taken")
    except RuntimeError:
        counts["illegal"] += 1


def explore(tries: int, draw: random.Random) -> None:
    for filters in (Filters(), ALL):
        try:
            repository = Repository.open(watched.root, filters, cache_bytes=20_000)
        except UserError as error:
            assert str(error).isprintable()
            counts["refused"] += 1
            continue
        finder = Finder(repository)
        for actions in ("paper", "extended") if len(repository) < 50_000 else ("paper",):
            arguments: dict[str, Any] = {"actions": actions, "page": draw.choice((1, 3, 40)), "hits": 3, "horizon": 8}
            for question in draw.sample(QUESTIONS, 2):
                walk(GivenEnv(finder, **arguments), question, tries if len(question) < 1000 else 6, draw)
                counts["episodes"] += 1


def main(base: str, seed: str, tries: str, *given: str) -> None:
    draw = random.Random(int(seed))
    roots = dict(each.split("=", 1) for each in given)
    watched.root = f"{base}/outside"  # what is imported later would be seen as a file outside that is opened
    for question in QUESTIONS:
        for actions in ("paper", "extended"):
            env = GivenEnv(Finder(Repository.open(watched.root)), actions=actions)
            walk(env, question, 30, draw)
    counts.clear()
    wrong.clear()
    os.chdir(f"{base}/outside")
    if os.geteuid() == 0:
        os.seteuid(65534)  # the superuser is refused nothing
    sys.stderr.write("READY\n")
    sys.stdin.readline()  # a tracer may come in here
    sys.addaudithook(watched.watch)
    for title, folder in roots.items():
        watched.root = str(Path(folder).resolve())
        try:
            explore(int(tries), draw)
        except Exception:
            wrong.append(f"{title}: {traceback.format_exc()[-1500:]}")
        counts["layouts"] += 1
    print(json.dumps({"counts": counts, "wrong": wrong[:50]}))


if __name__ == "__main__":
    main(*sys.argv[1:])

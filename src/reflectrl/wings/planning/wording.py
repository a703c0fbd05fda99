"""Short texts for the benchmark's questions: every function reads the package's text and writes a few words.

A question holds up to 255 states, and a model reads all of them, so their length is what a decision costs. The short
texts say what the package's say, without some of its words, and nothing more: no heuristic, no look ahead. Two
states have the same short text only if the package writes them alike. Because a short text is made from the text alone,
a policy that learned on short texts can answer the package's questions too.

A word of letters is one token of a scratch model, so facts are single words. `BD` is block b2 on block b4, `Bt` is b2
on the table, `Bh` is b2 in the hand. `hcd` is a car that lies across, in row c from column d on, `v` one that stands
upright, `H` and `V` are trucks. `sevenones onetens zerohundreds` is 17.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from reflectrl.core.types import UserError

FACT = re.compile(r"\((on|ontable|holding) b(\d+)(?: b(\d+))?\)")
DOOR = re.compile(r"The (\w+) door is (?:behind the (\w+) door|in the starting room)\.")
KEY = re.compile(r"The (\w+) key is (?:behind the (\w+) door|in the starting room)\.")
EXIT = re.compile(r"The exit is behind the (\w+) door\.")
ROOM = re.compile(r"in (?:the room behind the (\w+) door|the starting room) · keys: (.*) · open doors: (.*)")
START = "start"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = ("ones", "tens", "hundreds", "thousands", "tenthousands", "hundredthousands")


def tiles_state(text: str) -> str:
    """Write a board of the 8-puzzle as its nine cells: `123456.78`."""
    return re.sub(r"[ |]", "", text).replace("·", ".")


def tiles_question(goal: str, context: str) -> str:
    """Write the goal of the 8-puzzle."""
    return f"Tiles: {tiles_state(goal.rpartition(':')[2])}\n"


def relations(text: str) -> list[str]:
    """Return where each block is, tower by tower from the table up: `["At", "BA", "Ct"]`."""
    below: dict[str, str] = {}
    for kind, block, other in FACT.findall(text):
        below[_block(block)] = _block(other) if kind == "on" else {"ontable": "t", "holding": "h"}[kind]
    above = {under: block for block, under in below.items() if under.isupper()}
    words = []
    for block in sorted(below):
        if below[block].isupper():
            continue
        current: str | None = block
        while current is not None:
            words.append(current + below[current])
            current = above.get(current)
    return words


def _block(number: str) -> str:
    return chr(ord("A") + int(number) - 1)


def blocksworld_state(text: str) -> str:
    """Write the facts of Blocksworld as one word a block. What is clear follows from what is on what."""
    return " ".join(relations(text))


def blocksworld_question(goal: str, context: str) -> str:
    """Write the goal towers of Blocksworld."""
    return f"Blocks: {blocksworld_state(goal)}\n"


def digit_words(number: int) -> str:
    """Spell a number from 0 to 999,999 digit by digit, from the ones on: 17 is `sevenones onetens zerohundreds`.

    A word for each number would say nothing of what 20 + 1 and 30 + 1 have in common. Each digit names its place and
    comes in the order of written addition, so that a small model need not count them.

    Raises:
        UserError: the number is out of range.
    """
    if not 0 <= number < 10 ** len(PLACES):
        raise UserError(f"countdown: {number} is not a number from 0 to {10 ** len(PLACES) - 1:,}")
    digits = str(number).zfill(3)[::-1]
    return " ".join(DIGITS[int(digit)] + place for digit, place in zip(digits, PLACES, strict=False))


def countdown_state(text: str) -> str:
    """Write the numbers of Countdown. A new number begins with its ones."""
    return " ".join(digit_words(int(number)) for number in text.split())


def countdown_question(goal: str, context: str) -> str:
    """Write the target of Countdown."""
    target = re.search(r"make (\d+)", goal)
    return f"Numbers: {digit_words(int(target[1])) if target else '?'}\n"


def rush_hour_state(text: str) -> str:
    """Write a board of Rush Hour as one word a vehicle: first the red car, then the others by name."""
    cells: dict[str, list[tuple[int, int]]] = {}
    for row, line in enumerate(text.split(" | ")):
        for column, name in enumerate(line):
            if name != ".":
                cells.setdefault(name, []).append((row, column))
    return " ".join(_vehicle(cells[name]) for name in sorted(cells, key=lambda name: (name != "X", name)))


def _vehicle(cells: Sequence[tuple[int, int]]) -> str:
    (row, column), last = cells[0], cells[-1]
    kind = "h" if last[0] == row else "v"
    return f"{kind if len(cells) == 2 else kind.upper()}{'abcdef'[row]}{'abcdef'[column]}"


def rush_hour_question(goal: str, context: str) -> str:
    """Write the goal of Rush Hour, which is always the same."""
    return "Cars: out\n"


def keys_doors_question(goal: str, context: str) -> str:
    """Write a building: the exit, then each door with its room and the room of its key, nearest doors first."""
    rooms = {door: behind or START for door, behind in DOOR.findall(context)}
    keys = {door: behind or START for door, behind in KEY.findall(context)}
    exits = EXIT.search(context)
    order = [START]
    for room in order:
        order += sorted(door for door, behind in rooms.items() if behind == room)
    doors = " ".join(f"door{door.title()} in{rooms[door].title()} key{keys[door].title()}" for door in order[1:])
    return f"Doors: exit{exits[1].title() if exits else ''} {doors}\n"


def keys_doors_state(text: str) -> str:
    """Write the room, the keys of doors that are closed still, and the open doors."""
    match = ROOM.fullmatch(text)
    if match is None:
        raise UserError(f"keys and doors: {text!r:.80} is not a state of the benchmark")
    keys, doors = _listed(match[2]), _listed(match[3])
    words = [f"at{(match[1] or START).title()}"]
    words += [f"has{key.title()}" for key in sorted(keys) if key not in doors]
    return " ".join([*words, *(f"open{door.title()}" for door in sorted(doors))])


def _listed(names: str) -> list[str]:
    if names == "none":
        return []
    return names.split(", ")


def word_ladder_state(text: str) -> str:
    """Write a word letter by letter, since its letters are what a move changes: `c r a n e`."""
    return " ".join(text.lower())


def word_ladder_question(goal: str, context: str) -> str:
    """Write the word to reach."""
    target = re.search(r"reach the word (\w+)", goal)
    return f"Words: {word_ladder_state(target[1]) if target else '?'}\n"


def wikispeedia_question(goal: str, context: str) -> str:
    """Write the article to reach."""
    target = re.search(r'"(.*)"', goal)
    return f"Articles: {target[1] if target else '?'}\n"


STATES: dict[str, Callable[[str], str]] = {
    "tiles": tiles_state,
    "blocksworld": blocksworld_state,
    "countdown": countdown_state,
    "rush_hour": rush_hour_state,
    "keys_doors": keys_doors_state,
    "word_ladder": word_ladder_state,
    "wikispeedia": str,
}
QUESTIONS: dict[str, Callable[[str, str], str]] = {
    "tiles": tiles_question,
    "blocksworld": blocksworld_question,
    "countdown": countdown_question,
    "rush_hour": rush_hour_question,
    "keys_doors": keys_doors_question,
    "word_ladder": word_ladder_question,
    "wikispeedia": wikispeedia_question,
}
SIGNS = {
    "tiles": "put the tiles in order",
    "blocksworld": "reach a state where all of these facts",
    "countdown": "make ",
    "rush_hour": "move the red car X",
    "keys_doors": "reach the exit",
    "word_ladder": "reach the word ",
    "wikispeedia": "reach the Wikipedia article ",
}
"""Beginning of the goal by which a question of a domain is recognised."""


def domain_of(goal: str) -> str | None:
    """Return the domain of a question by its goal; None if it belongs to none of these domains."""
    return next((domain for domain, sign in SIGNS.items() if goal.startswith(sign)), None)


def shorten(goal: str, context: str, options: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return a question of the benchmark in short texts: the question, and its options in the same order.

    Raises:
        UserError: the question belongs to none of these domains, or an option cannot be read.
    """
    domain = domain_of(goal)
    if domain is None:
        raise UserError(f"planning: no domain has the goal {goal!r:.60}")
    return QUESTIONS[domain](goal, context), tuple(map(STATES[domain], options))

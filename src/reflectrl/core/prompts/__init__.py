"""Prompts: all text that a model sees, as templates in this folder and functions that render and tokenise them.

Teaching, play and learning all use these functions, so a model never sees a format that it was not trained on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from jinja2 import Environment, StrictUndefined, Template

from reflectrl.core.prompts.tokens import beginning, conventions, encode_template, encode_text, template_end
from reflectrl.core.types import Observation, TooLongError

CUT = 4
"""Number of pieces in a context. A history that is too long loses whole pieces, a quarter (1 / CUT) of the context."""


LINE_END = re.compile(r"(?<=[!-~]\n)(?=[!-~])")
"""Places where a text may be split: line ends with visible characters on both sides, since blanks may join a token."""

MOST_LINES = 2**14
"""Largest number of lines whose tokens are cached. When it is reached, the cache is emptied."""

VISIBLE = "aZ09.,:;>-+|'\"(_#<"
"""Examples of each kind of character that the splitting rules of tokenizers distinguish."""

_known: WeakKeyDictionary[Any, dict[str, list[int]] | None] = WeakKeyDictionary()


class Prompt(NamedTuple):
    """Prompt in two parts: `history` only grows within an episode, `rest` is new at every step."""

    history: str
    rest: str


@lru_cache(maxsize=8)
def template(name: str) -> Template:
    """Load a template from this folder."""
    source = files("reflectrl.core.prompts").joinpath(name).read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined, keep_trailing_newline=False).from_string(source)


@lru_cache(maxsize=8)
def _parts(name: str) -> tuple[str, ...]:
    """Return the pieces of a template's text between its variables. Joining them is faster than rendering."""
    return tuple(
        template(name).render(state="\0", carried="\0", reflection="\0", actions="\0", question="\0").split("\0")
    )


def reflector_prompt(observation: Observation) -> Prompt:
    """Build the reflector's prompt. The reflector continues it with an analysis, and ends with end-of-text.

    If the observation carries an earlier reflection, the reflector reads it too.
    """
    if not observation.carried:
        before, after = _parts("reflect.j2")
        return Prompt(observation.history, before + observation.state + after)
    before, between, after = _parts("reflect_again.j2")
    return Prompt(observation.history, before + observation.state + between + observation.carried + after)


def policy_prompt(
    observation: Observation, reflection: str | None, labels: Sequence[str], order: Sequence[int] = ()
) -> Prompt:
    """Build the policy's prompt. The policy answers with a choice label.

    Args:
        reflection: the reflector's analysis, or None.
        labels: labels, at least as many as there are actions.
        order: label i stands for action `order[i]`; empty means the environment's order.
    """
    options = [observation.actions[i] for i in order] if order else observation.actions
    actions = "; ".join(f"{label}: {action}" for label, action in zip(labels, options, strict=False))
    if reflection is None:
        before, middle, after = _parts("act.j2")
        return Prompt(observation.history, f"{before}{observation.state}{middle}{actions}{after}")
    before, between, middle, after = _parts("reflect_then_act.j2")
    text = f"{before}{observation.state}{between}{reflection}{middle}{actions}{after}"
    return Prompt(observation.history, text)


def words_prompt(observation: Observation, reflection: str | None) -> Prompt:
    """Build the prompt of a policy that answers with the text of an action. No actions are listed."""
    if reflection is None:
        before, after = _parts("act_in_words.j2")
        return Prompt(observation.history, before + observation.state + after)
    before, between, after = _parts("reflect_then_act_in_words.j2")
    return Prompt(observation.history, f"{before}{observation.state}{between}{reflection}{after}")


def question_prompt(observation: Observation, reflection: str | None, question: str) -> Prompt:
    """Build the prompt of a policy that chooses among the answers to a question about the state."""
    if reflection is None:
        before, middle, after = _parts("ask.j2")
        return Prompt(observation.history, before + observation.state + middle + question + after)
    before, between, middle, after = _parts("reflect_then_ask.j2")
    text = f"{before}{observation.state}{between}{reflection}{middle}{question}{after}"
    return Prompt(observation.history, text)


def reflection_completion(reflection: str) -> str:
    """Return the text that the reflector is trained to write. End-of-text follows as a token."""
    return " " + reflection


class Reader(Protocol):
    """Parts of a language model that tokenising needs: its tokenizer, its context in tokens, and its chat format."""

    tokenizer: Any
    context: int
    chat: Any
    """Text that a chat template puts around prompts (`chat.Chat`), or None."""


def tokenize(reader: Reader, prompt: Prompt, reserve: int = 1) -> tuple[int, ...]:
    """Tokenise a prompt, cut so that `reserve` more tokens fit into the context.

    The two parts are encoded separately, so that the history's tokens do not depend on the rest. A prompt that is too
    long loses the oldest part of its history, in pieces of a quarter of the context. (If it were cut to the exact
    length, every step would shift all its tokens, and no KV cache could be reused.) State, reflection, actions and the
    text of a chat template are never cut. Control tokens that the prompt spells out become ordinary tokens. Only the
    chat template's own control tokens keep their meaning.

    Raises:
        UserError: the parts that must not be cut are already too long.
    """
    tokenizer, context, chat = reader.tokenizer, reader.context, reader.chat
    if chat is None:
        before, start = "", list(beginning(tokenizer))
        rest = _encode(tokenizer, prompt.rest, prompt.history)
    else:
        before, start = chat.before, encode_template(tokenizer, chat.before)
        # Ordinary text after the prompt may merge with the prompt's last token, so the two are encoded together.
        joined, turn = template_end(tokenizer, chat.after)
        rest = _encode(tokenizer, prompt.rest + joined, prompt.history or before) + encode_template(tokenizer, turn)
    history = _encode(tokenizer, prompt.history, before) if prompt.history else []
    room = context - reserve - len(start) - len(rest)
    if room < 0:
        system = f", after a system prompt of {len(start)}," if chat is not None else ""
        raise TooLongError(
            f"{len(rest)} tokens of observation and {reserve} to be written{system} do not fit into the model's context"
            f" of {context} (raise model.context, or shorten the environment's state)"
        )
    piece = max(1, context // CUT)
    excess = max(0, len(history) - room)
    return tuple(start + history[-(-excess // piece) * piece :] + rest)


def _encode(tokenizer: Any, text: str, behind: str) -> list[int]:
    """Encode a text like `encode_text`, but from the cache of lines if that gives the same ids."""
    rules = conventions(tokenizer)
    # A tokenizer that marks the first word of a line gives the same ids only to a text that begins a line.
    if rules.separable or ((not behind or behind.endswith("\n")) and _lines_of(tokenizer) is not None):
        ids = encode_lines(tokenizer, text)
        if rules.controls.isdisjoint(ids):
            return ids
    return encode_text(tokenizer, text, behind)


def encode_lines(tokenizer: Any, text: str) -> list[int]:
    """Encode a text, as `tokenizer.encode` does with special tokens split, with a cache of lines.

    Histories grow by lines, and most lines of a state have occurred before. Encoding line by line gives the ids of the
    whole text if the tokenizer first splits text into words, and no word continues beyond a line end that has visible
    characters on both sides. This is true of byte-level BPE (GPT-2, Llama 3, Qwen, and tokenizers made here), but not
    of SentencePiece, for which the whole text is encoded.
    """
    cache = _lines_of(tokenizer)
    if cache is None:
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    ids: list[int] = []
    for line in LINE_END.split(text):
        if line not in cache:
            if len(cache) >= MOST_LINES:
                cache.clear()
            cache[line] = tokenizer.encode(line, add_special_tokens=False, split_special_tokens=True)
        ids += cache[line]
    return ids


def _lines_of(tokenizer: Any) -> dict[str, list[int]] | None:
    """Return the cache of a tokenizer's lines; None if the ids of a text are not the ids of its lines."""
    if tokenizer not in _known:
        _known[tokenizer] = {} if splits_at_lines(tokenizer) else None
    return _known[tokenizer]


def splits_at_lines(tokenizer: Any) -> bool:
    """Return whether the ids of any text are the concatenated ids of its lines."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    splitter = getattr(backend, "pre_tokenizer", None)
    if splitter is None or type(backend.normalizer).__name__ not in ("NoneType", "NFC", "Sequence"):
        return False
    added = backend.get_added_tokens_decoder().values()
    if any("\n" in token.content or (token.lstrip and LINE_END.search(f".\n{token.content}")) for token in added):
        return False

    def words(text: str) -> list[str]:
        normalised = backend.normalizer.normalize_str(text) if backend.normalizer is not None else text
        return [word for word, _ in splitter.pre_tokenize_str(normalised)]

    pairs = [(f"a{left}\n", f"{right}b") for left, right in product(VISIBLE, repeat=2)]
    return all(words(first + second) == words(first) + words(second) for first, second in pairs)

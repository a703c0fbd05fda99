"""Every word that a model sees: the templates in this folder, and the functions that render and tokenise them.

Teaching, play and learning render through these functions and no others, so a model never meets a format that it was
not trained on.
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

from reflectrl.types import Observation, UserError

CUT = 4
"""A history that does not fit is cut by multiples of a quarter of the context."""


LINE_END = re.compile(r"(?<=[!-~]\n)(?=[!-~])")
"""Where a text may be cut. (Blank characters beside the newline may join it in a word.)"""

MOST_LINES = 2**14
"""Lines that are remembered; then remembering begins anew."""

VISIBLE = "aZ09.,:;>-+|'\"(_#<"
"""Of the kinds of visible characters that splitting rules tell apart, some each."""

_known: WeakKeyDictionary[Any, dict[str, list[int]] | None] = WeakKeyDictionary()


class Prompt(NamedTuple):
    """A prompt in two parts: `history` only grows within an episode, `rest` is new at every step."""

    history: str
    rest: str


@lru_cache(maxsize=8)
def template(name: str) -> Template:
    """One of the templates in this folder."""
    source = files("reflectrl.prompts").joinpath(name).read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined, keep_trailing_newline=False).from_string(source)


@lru_cache(maxsize=8)
def _parts(name: str) -> tuple[str, ...]:
    """A template's text cut at its variables, each rendered plainly: the fast path of the rollout's inner loop."""
    return tuple(template(name).render(state="\0", reflection="\0", actions="\0").split("\0"))


def reflector_prompt(observation: Observation) -> Prompt:
    """What the reflector reads; it continues with its analysis and ends with end-of-text."""
    before, after = _parts("reflect.j2")
    return Prompt(observation.history, before + observation.state + after)


def policy_prompt(
    observation: Observation, reflection: str | None, labels: Sequence[str], order: Sequence[int] = ()
) -> Prompt:
    """What the policy reads; it answers with one choice label.

    Args:
        reflection: the reflector's analysis, or None when nobody reflected.
        labels: at least as many labels as there are actions.
        order: label i names action `order[i]`; empty keeps the environment's order.
    """
    listed = [observation.actions[i] for i in order] if order else observation.actions
    actions = "; ".join(f"{label}: {action}" for label, action in zip(labels, listed, strict=False))
    if reflection is None:
        before, middle, after = _parts("act.j2")
        return Prompt(observation.history, f"{before}{observation.state}{middle}{actions}{after}")
    before, between, middle, after = _parts("reflect_then_act.j2")
    text = f"{before}{observation.state}{between}{reflection}{middle}{actions}{after}"
    return Prompt(observation.history, text)


def words_prompt(observation: Observation, reflection: str | None) -> Prompt:
    """What a policy reads that answers with the text of an action instead of a label: no actions are listed."""
    if reflection is None:
        before, after = _parts("act_in_words.j2")
        return Prompt(observation.history, before + observation.state + after)
    before, between, after = _parts("reflect_then_act_in_words.j2")
    return Prompt(observation.history, f"{before}{observation.state}{between}{reflection}{after}")


def reflection_completion(reflection: str) -> str:
    """What the reflector is trained to continue with (end-of-text follows as a token)."""
    return " " + reflection


class Reader(Protocol):
    """What tokenising asks of a language model: its tokenizer, and the longest sequence that it reads, in tokens."""

    tokenizer: Any
    context: int
    chat: Any
    """What a chat template puts around its prompts (`chat.Chat`), or None."""


def tokenize(reader: Reader, prompt: Prompt, reserve: int = 1) -> tuple[int, ...]:
    """Token ids of a prompt, with room for `reserve` more in the context.

    The two parts are encoded apart, so that the history's tokens do not depend on what follows. A prompt that is too
    long loses the oldest part of its history, in pieces of a quarter of the context: were it cut to measure, every
    step would shift all that follows, and no KV cache could be used again. The state, the reflection and the actions
    are never cut, nor is what a chat template puts around them.

    Raises:
        UserError: what may not be cut is already longer than the context.
    """
    tokenizer, context, chat = reader.tokenizer, reader.context, reader.chat
    if chat is None:
        bos = getattr(tokenizer, "bos_token_id", None)
        start = [bos] if bos is not None and bos != tokenizer.eos_token_id else []
    else:
        start = encode_lines(tokenizer, chat.before)
    history = encode_lines(tokenizer, prompt.history) if prompt.history else []
    rest = encode_lines(tokenizer, prompt.rest if chat is None else prompt.rest + chat.after)
    room = context - reserve - len(start) - len(rest)
    if room < 0:
        beside = f" beside {len(start)} of the system prompt" if chat is not None else ""
        raise UserError(
            f"{len(rest)} tokens of observation and {reserve} to be written do not fit{beside} the model's context of"
            f" {context} (raise model.context, or shorten the environment's state)"
        )
    piece = max(1, context // CUT)
    excess = max(0, len(history) - room)
    return tuple(start + history[-(-excess // piece) * piece :] + rest)


def encode_lines(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, without special tokens, as `tokenizer.encode` returns them; lines seen before are remembered.

    Histories grow by lines, and a state mostly has lines that stood in others. The ids are those of the whole text if
    the tokenizer first splits a text into words, none of which goes on beyond a line's end where something visible
    stands on both sides of it: byte-level BPE does (GPT-2's, Llama 3's, Qwen's, those made here), SentencePiece does
    not, and encodes the whole.
    """
    if tokenizer not in _known:
        _known[tokenizer] = {} if splits_at_lines(tokenizer) else None
    known = _known[tokenizer]
    if known is None:
        return list(tokenizer.encode(text, add_special_tokens=False))
    ids: list[int] = []
    for line in LINE_END.split(text):
        if line not in known:
            if len(known) >= MOST_LINES:
                known.clear()
            known[line] = tokenizer.encode(line, add_special_tokens=False)
        ids += known[line]
    return ids


def splits_at_lines(tokenizer: Any) -> bool:
    """Whether a text's ids are those of its lines, one after another."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    splitter = getattr(backend, "pre_tokenizer", None)
    if splitter is None or type(backend.normalizer).__name__ not in ("NoneType", "NFC"):
        return False
    added = backend.get_added_tokens_decoder().values()
    if any("\n" in token.content or (token.lstrip and LINE_END.search(f".\n{token.content}")) for token in added):
        return False

    def words(text: str) -> list[str]:
        return [word for word, _ in splitter.pre_tokenize_str(text)]

    pairs = [(f"a{left}\n", f"{right}b") for left, right in product(VISIBLE, repeat=2)]
    return all(words(first + second) == words(first) + words(second) for first, second in pairs)

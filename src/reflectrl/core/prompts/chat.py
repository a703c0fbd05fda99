"""Chat formats of instruct models: the text that a chat template puts before and after a prompt.

A request is a system message and a user message, which is the prompt itself. So the template adds the same text at
every step. Before the prompt come the system message and the opening of the user's message, and after it the opening of
the assistant's message. The growing history still precedes the changing state, so its KV cache can be reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from reflectrl.core.plugins import one_line
from reflectrl.core.prompts import template
from reflectrl.core.prompts.rendering import render
from reflectrl.core.prompts.tokens import defused
from reflectrl.core.types import UserError

Role = Literal["policy", "reflector"]

PROBES = ("|T: : |\nLast: none\nChoice:", "a longer one,\nin which other things stand (1, 2).\n- and {one} <more>")
"""Prompts for trying a template."""

ANSWER = "Yes."
"""Answer for trying a template."""


@dataclass(frozen=True)
class Chat:
    """Chat format of a player's model.

    Attributes:
        before: text before every prompt, with special tokens spelled out.
        after: text after every prompt. The answer follows directly.
        end: id of the token that ends an answer.
    """

    before: str
    after: str
    end: int


def system_prompt(instructions: str, role: Role, shown: str = "", labelled: bool = True, carries: bool = False) -> str:
    """Build a player's system prompt: the environment's rules, the player's role, and demonstrated steps if given.

    Args:
        shown: demonstrated steps; "" for none.
        labelled: True if a policy answers with an action's label, False if it answers with the action's text.
        carries: True if a reflector reads its previous reflection.
    """
    rendered = template("system.j2").render(
        instructions=instructions.strip(), role=role, shown=shown.strip(), labelled=labelled, carries=carries
    )
    return rendered.strip()


def has_template(tokenizer: Any) -> bool:
    """Return whether a tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def chat_of(tokenizer: Any, system: str, model: str = "") -> Chat:
    """Find a model's chat format by trying its tokenizer's template.

    If the template does not support a system message, or ignores it, the system prompt begins the user's message.

    Args:
        system: the system prompt; "" leaves it to the template.
        model: the model's name, for errors.

    Raises:
        UserError: the template fails, changes the prompt, or puts varying text before the prompt.
    """
    problem, system = "is missing", defused(tokenizer, system)
    for folded in (False, True) if system else (False,):
        try:
            first, second = (_render(tokenizer, system, probe, folded) for probe in PROBES)
            answered = _render(tokenizer, system, PROBES[0], folded, ANSWER)
            closed = _render(tokenizer, system, PROBES[0], folded, open_answer=False)
        except Exception as error:  # a template may raise anything
            problem = f"fails ({one_line(error)[:160]})"
            continue
        before, separator, after = first.partition(PROBES[0])
        if not separator or second != before + PROBES[1] + after or system not in before:
            problem = "does not keep a prompt as it is, after a beginning that is always the same"
            continue
        if first == closed:  # it does not open the assistant's turn when it is asked to
            after = _opened(after, answered.partition(PROBES[0])[2].partition(ANSWER)[0])
        return Chat(before, after, _end(tokenizer, answered.rpartition(ANSWER)[2]))
    name = model or getattr(tokenizer, "name_or_path", "")
    raise UserError(f"model {name!r}: its chat template {problem}; set model.chat to off")


def _render(tokenizer: Any, system: str, prompt: str, folded: bool, answer: str = "", open_answer: bool = True) -> str:
    """Render a prompt with the template, or a finished exchange if there is an `answer`."""
    content = f"{system}\n\n{prompt}" if folded else prompt
    messages = [{"role": "user", "content": content}]
    if system and not folded:
        messages.insert(0, {"role": "system", "content": system})
    if answer:
        messages.append({"role": "assistant", "content": answer})
    return render(tokenizer, messages, open_answer and not answer)


def _opened(after: str, between: str) -> str:
    """Return the text after a prompt, including the answer's header if the template writes it before answers only.

    Args:
        after: text after a prompt without an answer.
        between: text between a prompt and its answer.
    """
    # A header of blanks alone belongs to the answer's first word, as in Llama 2's template.
    has_header = between.startswith(after) and between[len(after) :].strip()
    return between if has_header else after


def _end(tokenizer: Any, behind: str) -> int:
    """Return the special token that a template puts after an answer; end-of-text if there is none."""
    ids = tokenizer.encode(behind.lstrip(), add_special_tokens=False)
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    return int(next((token for token in ids[:1] if token in special), tokenizer.eos_token_id))

"""Turn topics into questions in the styles of users: short, medium, long, and as a bug report."""

from __future__ import annotations

import re

from reflectrl.wings.autoexplore.making.english import (
    Said,
    in_words,
    is_clause,
    lowered,
    main_clause,
    object_of,
    participle,
    parts,
    plain,
    said,
    shortened,
    verb_of,
)
from reflectrl.wings.autoexplore.making.naming import Naming, forms, the
from reflectrl.wings.autoexplore.making.rewording import reworded, tidy
from reflectrl.wings.autoexplore.making.topics import Topic

STYLES = {"short": 3, "medium": 3, "long": 7, "report": 1}
"""Style of a question about code → relative frequency."""
TAILS = 0.4
"""Share of long questions with an additional part that the file may not answer."""
_CONDITION = re.compile(r"(?:if|when|in case|unless|while|once|after|before)\b")


class Asker(Naming):
    """Writer of questions about topics. All random choices use `rng`."""

    def ask(self, topic: Topic) -> str | None:
        """Return a question about a topic; None if no question is possible."""
        if topic.kind == "keys":
            question: str | None = self._about_keys(topic)
        elif topic.kind == "section":
            question = self._about_section(topic)
        else:
            writers = (self._short, self._medium, self._long, self._report)
            question = self.rng.choices(writers, list(STYLES.values()))[0](topic)
        return _finished(question) if question else None

    # ---- code --------------------------------------------------------------------------------------------------------

    def _short(self, topic: Topic) -> str | None:
        what = self.does(topic, self.rng.choice((6, 8, 10)))
        if what is None:
            return None
        if not what.verb:
            return self.phrase(_kind_of(what.rest, "short_things")).format(rest=what.rest, the_rest=the(what.rest))
        passive = self._passive(what) if self.chance(0.5) else None
        if passive is not None:
            return self.phrase("passives").format(passive)
        return self.phrase("short_actions").format(**forms(what))

    def _passive(self, what: Said) -> str | None:
        """Return the passive form of an action, such as "is the page sent to the server"; None if too complicated."""
        goal, more = object_of(what.rest)
        if not goal or len(goal.split()) > 6 or re.search(r"\b(?:and|or)\b", what.rest):
            return None
        return f"{'are' if _is_plural(goal) else 'is'} {goal} {participle(what.verb)} {more}"

    def _medium(self, topic: Topic) -> str | None:
        what = self.does(topic, 12)
        if what is None:
            return None
        noun = "code" if topic.source == "comment" or topic.kind == "constant" else topic.kind
        values = {"place": self.place(topic, 0.6), "noun": noun, "the_rest": the(what.rest), **forms(what)}
        return self.phrase("medium_actions" if what.verb else _kind_of(what.rest, "medium_things")).format(**values)

    def _long(self, topic: Topic) -> str | None:
        sentence = "" if topic.source == "comment" else topic.told
        if not (sentence or len(parts(topic.name)) > 1):
            return None
        detail = self.remark(topic.told) if topic.source == "comment" else self.detail(topic)
        others = topic.calls or topic.bases or topic.takes
        question = self.phrase("long" if detail else "whole").format(
            thing=self.thing(topic.kind, topic.name, sentence) + self.place(topic, 0.7),
            detail=detail,
            other=self.things(others) if others else "its callers",
            role=self.phrase("roles"),
            relation=self.phrase("relations"),
            instead=self.phrase("instead"),
            effort=self.phrase("efforts").format(detail),
        )
        return f"{question}{self.phrase('tails')}" if self.chance(TAILS) else question

    def _report(self, topic: Topic) -> str | None:
        """Write a bug report about the topic."""
        what = self.does(topic, 12)
        if what is None or not what.verb:
            return None
        more = self.detail(topic)
        trouble = self.phrase("reports").format(goal=f"{what.verb} {what.rest}", **forms(what))
        hint = f" It seems to {more}." if more and self.chance(0.6) else ""
        suspect = f" Perhaps {self.thing(topic.kind, topic.name, topic.told)} is to blame." if self.chance(0.4) else ""
        return f"{trouble}{hint}{suspect} {self.phrase('asking')}"

    # ---- documentation and data --------------------------------------------------------------------------------------

    def _about_section(self, topic: Topic) -> str | None:
        if topic.name and self.chance(0.55 if topic.told else 1.0):
            title = plain(topic.name)
            what = said(title)
            if what is not None and what.verb and verb_of(title.split()[0]):
                return self.phrase("how_to").format(**forms(Said(what.verb, self.reword(shortened(what.rest, 12)))))
            return self.phrase("explained").format(rest=self.reword(lowered(shortened(title, 12))))
        clause = self.reword(lowered(shortened(main_clause(plain(topic.told)), 14)))
        phrase = "stated" if is_clause(clause) else "mentioned"
        return self.phrase(phrase).format(clause=clause) if len(clause.split()) >= 4 else None

    def _about_keys(self, topic: Topic) -> str:
        keys = [reworded(in_words(key), self.rng, 0.3) if self.chance(0.5) else key for key in topic.takes[:3]]
        listed = " and ".join([", ".join(keys[:-1]), keys[-1]] if len(keys) > 1 else keys)
        owner = f" for {in_words(topic.owner)}" if parts(topic.owner) and self.chance(0.6) else ""
        columns = topic.path.endswith((".csv", ".tsv"))
        return self.phrase("columns" if columns else "keys").format(listed=listed, owner=owner)


def _kind_of(rest: str, otherwise: str) -> str:
    """Return the list of phrases for a text without a leading verb: a condition, a statement, or a thing."""
    if _CONDITION.match(rest):
        return "conditions"
    return "clauses" if is_clause(rest) else otherwise


def _is_plural(goal: str) -> bool:
    head = goal.split(" of ")[0].split()[-1]
    return (head.endswith("s") and not head.endswith(("ss", "us", "is"))) or head in ("data", "children")


def _finished(question: str) -> str:
    """Vary the first letter and the question mark as users do: capitalized questions always end with a mark."""
    question = tidy(question).rstrip("?")
    if question[:1].islower() and len(question) % 3 == 0:
        question = question[:1].upper() + question[1:]
    asks = re.search(r"\b(?:where|which|what|how|why|is there|I want)\b", question, re.IGNORECASE)
    return f"{question}?" if asks and (question[:1].isupper() or len(question) % 2) else question

"""Topics → questions, in the styles in which people ask: short, of medium length, long, and as a report of a bug."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reflectrl.envs.autoexplore.making.english import (
    Said,
    gerund,
    in_words,
    is_clause,
    lowered,
    main_clause,
    object_of,
    participle,
    parts,
    phrases,
    plain,
    said,
    shortened,
    tables,
    third,
    verb_of,
    word_list,
)
from reflectrl.envs.autoexplore.making.rewording import reworded, tidy
from reflectrl.envs.autoexplore.making.topics import Topic

RATES = (0.0, 0.3, 0.6)
"""Shares of the words that are replaced; drawn anew for each question."""
LITERAL = 0.3
"""How often a definition is called by its name instead of being described."""
STYLES = {"short": 3, "medium": 3, "long": 5, "report": 1}
"""How often each style is chosen, relatively."""


@dataclass
class Asker:
    """Asks about topics. Everything that is drawn comes from `rng`."""

    rng: random.Random

    def ask(self, topic: Topic) -> tuple[str, str] | None:
        """A question about a topic and its style; None where nothing can be asked."""
        if topic.kind == "keys":
            return _finished(self._about_keys(topic)), "medium"
        if topic.kind == "section":
            question, style = self._about_section(topic), "medium"
        else:
            style = self.rng.choices(list(STYLES), list(STYLES.values()))[0]
            question = self._about_code(topic, style)
        return (_finished(question), style) if question else None

    def _pick(self, choices: Sequence[str]) -> str:
        return self.rng.choice(choices)

    def _phrase(self, name: str) -> str:
        return self.rng.choice(phrases(name))

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share

    def _said(self, told: str, most: int) -> Said | None:
        """What a sentence says, in other words and not too many."""
        what = said(told)
        if what is None:
            return None
        rate = self.rng.choice(RATES)
        rest = reworded(shortened(what.rest, most), self.rng, rate)
        others = tables()["verbs"].get(what.verb, "").split()
        verb = self._pick(others).replace("_", " ") if others and self._chance(rate) else what.verb
        return Said(verb, rest) if rest else None

    # ---- naming things -----------------------------------------------------------------------------------------------

    def _thing(self, kind: str, name: str, told: str, most: int = 10) -> str:
        """A definition as a noun: called by its name, by the words of its name, or described."""
        noun = {"constant": "constant", "module": "module"}.get(kind, kind)
        if name and self._chance(LITERAL):
            return self._pick((f"the {name} {noun}", f"{name}", f"the {name.strip('_')} {noun}"))
        what = self._said(told, most) if told else None
        if what is not None and what.verb:
            return f"the {noun} that {third(what.verb)} {what.rest}"
        if what is not None and kind in ("class", "module"):
            return (
                f"the {what.rest}" if re.search(r"\b(class|module)\b", what.rest) else f"the {noun} for the {what.rest}"
            )
        return f"the {self._words_of(name)} {noun}" if name else "the code"

    def _words_of(self, name: str) -> str:
        """What a name says: "get_theme" is "theme retrieval"."""
        words = parts(name)
        nominal = tables()["nominals"].get(words[0]) if words else None
        said_so = [*words[1:], nominal] if nominal and len(words) > 1 else words
        return reworded(" ".join(said_so), self.rng, self._pick_rate())

    def _pick_rate(self) -> float:
        return self.rng.choice(RATES)

    def _place(self, topic: Topic, share: float) -> str:
        """Where a definition is: in which class, or in which part of the repository."""
        if topic.owner and self._chance(share):
            return f" {self._pick(('in', 'of', 'in'))} {self._thing('class', topic.owner, topic.owner_told, 8)}"
        folder = topic.path.split("/")[-2:-1]
        if folder and folder[0].lower() not in word_list("usual_folders") and self._chance(share / 2):
            return f" in the {in_words(folder[0])} {self._pick(('package', 'code', 'part'))}"
        return ""

    def _things(self, names: Sequence[str]) -> str:
        """One or two names, as words or as they are."""
        chosen = self.rng.sample(list(names), min(len(names), self.rng.choice((1, 2, 2))))
        return " and ".join(name if self._chance(0.3) else self._words_of(name) for name in chosen)

    # ---- code --------------------------------------------------------------------------------------------------------

    def _about_code(self, topic: Topic, style: str) -> str | None:
        ways: dict[str, Callable[[Topic], str | None]] = {
            "short": self._short, "medium": self._medium, "long": self._long, "report": self._report,
        }  # fmt: skip
        return ways[style](topic)

    def _does(self, topic: Topic, most: int) -> Said | None:
        """What the code does: by its documentation, a comment, or its name."""
        if topic.told:
            return self._said(topic.told, most)
        words = parts(topic.name)
        if topic.kind in ("constant", "class"):
            words.append("setting" if topic.kind == "constant" else "class")
        verb = verb_of(words[0]) if words and words[0] != "init" else None
        if verb and len(words) > 2:
            return Said(verb, reworded(" ".join(words[1:]), self.rng, self._pick_rate()))
        return Said("", reworded(" ".join(words), self.rng, self._pick_rate())) if len(words) > 2 else None

    def _short(self, topic: Topic) -> str | None:
        what = self._does(topic, self.rng.choice((6, 8, 10)))
        if what is None:
            return None
        verb, rest = what
        if not verb:
            return self._phrase("clauses" if is_clause(rest) else "short_things").format(rest=rest)
        goal, more = object_of(rest)
        if not goal:
            return self._phrase("short_actions").format(base=verb, third=third(verb), doing=gerund(verb), rest=rest)
        be = "are" if _is_plural(goal) else "is"
        passive = f"{be} {goal} {participle(verb)} {more}"
        plainly = self._phrase("short_actions").format(base=verb, third=third(verb), doing=gerund(verb), rest=rest)
        if len(goal.split()) > 6 or " and " in goal or self._chance(0.5):
            return plainly
        return self._pick(("where {}", "how {}", "where in the code {}", "which file decides how {}")).format(passive)

    def _medium(self, topic: Topic) -> str | None:
        what = self._does(topic, 12)
        if what is None:
            return None
        noun, place = topic.kind, self._place(topic, 0.6)
        if not what.verb:
            return self._phrase("clauses" if is_clause(what.rest) else "medium_things").format(
                rest=what.rest, place=place, noun=noun
            )
        return self._phrase("medium_actions").format(
            base=what.verb, third=third(what.verb), doing=gerund(what.verb), rest=what.rest, place=place, noun=noun
        )

    def _long(self, topic: Topic) -> str | None:
        told = "" if topic.source == "comment" else topic.told
        if not (told or len(parts(topic.name)) > 1):
            return None
        detail = self._remark(topic.told) if topic.source == "comment" else self._detail(topic)
        others = topic.calls or topic.takes
        return self._phrase("long" if detail else "whole").format(
            thing=self._thing(topic.kind, topic.name, told) + self._place(topic, 0.7),
            detail=detail,
            other=self._things(others) if others else "its callers",
            role=self._phrase("roles"),
            relation=self._phrase("relations"),
            instead=self._phrase("instead"),
            effort=self._phrase("efforts").format(detail),
        )

    def _detail(self, topic: Topic) -> str | None:
        """Something that a definition's body does, as a verb in its base form and what follows."""
        ways: list[str] = []
        if topic.calls:
            things = self._things(topic.calls)
            ways += [f"{self._phrase('using')} {things}"]
        if topic.raises:
            failure = in_words(self._pick(topic.raises))
            ways += [f"{self._phrase('raising')} the {failure}"]
        if topic.takes:
            things = self._things(topic.takes)
            ways += [f"{self._phrase('taking')} the {things}"]
        ways += [detail for remark in topic.remarks if (detail := self._remark(remark))]
        return self._pick(ways) if ways else None

    def _remark(self, remark: str) -> str | None:
        """A comment as something that is done."""
        what = self._said(remark, 11)
        if what is None:
            return None
        if what.verb:
            return f"{what.verb} {what.rest}"
        clause = what.rest
        if re.match(r"(?:if|when|in case|unless|while|once|after|before)\b", clause):
            return f"behave {clause}"
        return f"{self._phrase('facts')} {clause}"

    def _report(self, topic: Topic) -> str | None:
        """The words of somebody for whom it does not work."""
        what = self._does(topic, 12)
        if what is None or not what.verb:
            return None
        goal = f"{what.verb} {what.rest}"
        more = self._detail(topic)
        trouble = self._phrase("reports").format(goal=goal, doing=f"{gerund(what.verb)} {what.rest}")
        hint = f" It seems to {more}." if more and self._chance(0.6) else ""
        thing = f" Perhaps {self._thing(topic.kind, topic.name, topic.told)} is to blame." if self._chance(0.4) else ""
        return f"{trouble}{hint}{thing} {self._phrase('asking')}"

    # ---- documentation and data --------------------------------------------------------------------------------------

    def _about_section(self, topic: Topic) -> str | None:
        if topic.name and self._chance(0.55 if topic.told else 1.0):
            name = plain(topic.name)
            what = said(name)
            if what is not None and what.verb and verb_of(name.split()[0]):
                rest = reworded(shortened(what.rest, 12), self.rng, self._pick_rate())
                return self._phrase("how_to").format(base=what.verb, doing=gerund(what.verb), rest=rest)
            title = reworded(lowered(shortened(name, 12)), self.rng, self._pick_rate())
            return self._phrase("explained").format(rest=title)
        told = lowered(shortened(main_clause(plain(topic.told)), 14))
        clause = reworded(told, self.rng, self._pick_rate())
        return self._phrase("stated").format(clause=clause) if len(clause.split()) >= 4 else None

    def _about_keys(self, topic: Topic) -> str:
        keys = [reworded(in_words(key), self.rng, 0.3) if self._chance(0.5) else key for key in topic.takes[:3]]
        listed = " and ".join([", ".join(keys[:-1]), keys[-1]] if len(keys) > 1 else keys)
        columns = topic.path.endswith((".csv", ".tsv"))
        owner = f" for {in_words(topic.owner)}" if parts(topic.owner) and self._chance(0.6) else ""
        return self._phrase("columns" if columns else "keys").format(listed=listed, owner=owner)


def _is_plural(goal: str) -> bool:
    head = goal.split(" of ")[0].split()[-1]
    return (head.endswith("s") and not head.endswith(("ss", "us", "is"))) or head in ("data", "children")


def _finished(question: str) -> str:
    """With a mark at its end if it asks in a sentence, and without one if it is a few words thrown at a search box."""
    question = tidy(question)
    asks = re.match(r"(?:where|which|what|how|why|is|I want)\b", question, re.I) or ". " in question
    question = question if not question[:1].islower() or len(question) % 3 else question[:1].upper() + question[1:]
    return f"{question}?" if asks and (question[:1].isupper() or len(question) % 2) else question

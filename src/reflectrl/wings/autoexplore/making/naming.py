"""Names of code elements in questions: the identifier, the words of the identifier, or a description."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from reflectrl.wings.autoexplore.making.english import (
    Said,
    gerund,
    in_words,
    parts,
    phrases,
    said,
    shortened,
    tables,
    third,
    verb_of,
    word_list,
)
from reflectrl.wings.autoexplore.making.rewording import reworded
from reflectrl.wings.autoexplore.making.topics import Topic

RATES = (0.0, 0.4, 0.8)
"""Probabilities of replacing a word by a synonym. A rate is drawn for each piece of text."""
LITERAL = 0.3
"""Probability of calling a definition by its identifier instead of describing it."""
SHORTER = 0.4
"""Probability of dropping a word of a name with at least three words."""
_DETERMINED = re.compile(
    r"(?:a|an|the|another|some|any|all|this|that|these|those|each|every|no|its|your|our|my|his|their|how|what|whether|"
    r"which|one|two|three|both|several|many)\b",
    re.IGNORECASE,
)


def the(thing: str) -> str:
    """Put "the" before a noun phrase, unless it begins with an article or another determiner."""
    return thing if _DETERMINED.match(thing) else f"the {thing}"


@dataclass
class Naming:
    """Generator of names for code elements. All random choices use `rng`."""

    rng: random.Random

    def phrase(self, name: str) -> str:
        """Draw a template from an entry of `phrases.toml`."""
        return self.rng.choice(phrases(name))

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return self.rng.random() < share

    def reword(self, text: str) -> str:
        """Replace words by synonyms, at a rate drawn from `RATES`."""
        return reworded(text, self.rng, self.rng.choice(RATES))

    def said(self, told: str, most: int) -> Said | None:
        """Parse a sentence and reword it with at most `most` words; return None if it cannot be parsed."""
        what = said(told)
        if what is None:
            return None
        rate = self.rng.choice(RATES)
        rest = reworded(shortened(what.rest, most), self.rng, rate)
        others = tables()["verbs"].get(what.verb, "").split()
        verb = self.rng.choice(others).replace("_", " ") if others and self.chance(rate) else what.verb
        return Said(verb, rest) if rest else None

    def does(self, topic: Topic, most: int) -> Said | None:
        """Describe what code does, from its documentation, a comment, or its name; return None if that fails."""
        if topic.told:
            return self.said(topic.told, most)
        words = parts(topic.name)
        if len(words) < 2 or words[0] == "init":
            return None
        is_done = topic.kind in ("function", "method")
        if is_done and words[0] in ("is", "has", "can", "should", "supports", "needs"):
            return Said("check", f"whether it {' '.join(words)}")
        verb = verb_of(words[0]) if is_done else None
        if verb and len(words) > 2:
            return Said(verb, self.reword(" ".join(words[1:])))
        noun = {"constant": self.rng.choice(("setting", "constant", "value"))}.get(topic.kind, topic.kind)
        return Said("", f"{self.words_of(topic.name)} {noun}")

    def thing(self, kind: str, name: str, told: str, most: int = 10) -> str:
        """Return a noun phrase for a definition: its identifier, the words of its identifier, or a description."""
        if name and self.chance(LITERAL):
            return self.rng.choice((f"the {name} {kind}", f"{name}", f"the {name.strip('_')} {kind}"))
        what = self.said(told, most) if told else None
        if what is not None and what.verb:
            return f"the {kind} that {third(what.verb)} {what.rest}"
        if what is not None and kind in ("class", "module"):
            plainly = re.search(r"\b(class|module|mixin|interface|exception|error)\b", what.rest)
            return the(what.rest) if plainly else f"the {kind} for {the(what.rest)}"
        return f"the {self.words_of(name)} {kind}" if name else "the code"

    def words_of(self, name: str) -> str:
        """Turn an identifier into words: "get_theme" is "theme retrieval"."""
        words = parts(name)
        nominal = tables()["nominals"].get(words[0]) if words else None
        words = [*words[1:], nominal] if nominal and len(words) > 1 else words
        if len(words) > 2 and self.chance(SHORTER):
            words.pop(self.rng.randrange(len(words)))
        return self.reword(" ".join(words))

    def things(self, names: Sequence[str]) -> str:
        """Return one or two of the names, as words or unchanged."""
        sample = self.rng.sample(list(names), min(len(names), self.rng.choice((1, 2, 2))))
        return " and ".join(name if self.chance(0.3) else self.words_of(name) for name in sample)

    def place(self, topic: Topic, share: float) -> str:
        """Return the class or the part of the repository that holds a definition; "" most of the time."""
        if topic.owner and self.chance(share):
            return f" {self.rng.choice(('in', 'of', 'in'))} {self.thing('class', topic.owner, topic.owner_told, 8)}"
        folder = topic.path.split("/")[-2:-1]
        if folder and folder[0].lower() not in word_list("usual_folders") and self.chance(share / 2):
            return f" in the {in_words(folder[0])} {self.rng.choice(('package', 'code', 'part'))}"
        return ""

    def detail(self, topic: Topic) -> str | None:
        """Describe a detail of a definition's body, as a verb in its base form and what follows; None if none."""
        details = [detail for remark in topic.remarks if (detail := self.remark(remark))]
        if topic.calls:
            details += [f"{self.phrase('using')} {self.things(topic.calls)}"] * 2
        if topic.raises:
            details.append(f"{self.phrase('raising')} the {in_words(self.rng.choice(topic.raises))}")
        if topic.takes:
            details.append(f"{self.phrase('taking')} the {self.things(topic.takes)}")
        if topic.bases:
            details += [f"{self.phrase('inheriting')} {self.things(topic.bases)}"] * 2
        return self.rng.choice(details) if details else None

    def remark(self, remark: str) -> str | None:
        """Turn a comment into a verb phrase; return None if it cannot be parsed."""
        what = self.said(remark, 11)
        if what is None or what.verb:
            return f"{what.verb} {what.rest}" if what else None
        if re.match(r"(?:if|when|in case|unless|while|once|after|before)\b", what.rest):
            return f"behave {what.rest}"
        return f"{self.phrase('facts')} {what.rest}"


def forms(what: Said) -> dict[str, str]:
    """Return the values for the templates: the forms of the verb, and what follows it."""
    return {"base": what.verb, "third": third(what.verb), "doing": gerund(what.verb), "rest": what.rest}

"""Free text over several turns, in letters: reflectrl check-env reflectrl.examples.say_back:SayBack"""

from itertools import product

from reflectrl.core.envs.base import SPLITS, Outcome, divide, require_known
from reflectrl.core.envs.written import WrittenEnv
from reflectrl.core.types import Task

LETTERS = "abc"


class SayBack(WrittenEnv):
    """Say two words back, one after the other. A letter in the right place earns a little; two correct words win."""

    def __init__(self, longest: int = 2) -> None:
        super().__init__(LETTERS, length=longest, answers=2)
        words = ["".join(letters) for size in range(1, longest + 1) for letters in product(LETTERS, repeat=size)]
        pairs, tenth = list(product(words, repeat=2)), len(words) ** 2 // 10
        self.pairs = divide(pairs, {"train": 6 * tenth, "validation": tenth, "test": 3 * tenth}, "say-back")

    def tasks(self, split, stage=None):
        require_known("say-back", "split", split, SPLITS)
        require_known("say-back", "stage", stage or "full", self.stages)
        return [Task("-".join(pair), "say-back", {"words": list(pair)}, split) for pair in self.pairs[split]]

    def begin(self, task):
        self.words, self.right = list(task.payload["words"]), True

    def question(self):
        return f"Say: {' '.join(self.words[0])}\n" if self.words else "Thank you.\n"

    def answer(self, text):
        word = self.words.pop(0)
        self.right &= text == word
        letter_accuracy = sum(a == b for a, b in zip(text, word, strict=False)) / max(len(text), len(word))
        return Outcome(0.5 * letter_accuracy, terminated=not self.words, success=not self.words and self.right)

"""Built-in reward components that are sequence classifiers.

Sources: "Leftover Lunch" (Baheti et al., ICLR 2024, arXiv 2305.14718, section 4) for the choice of components; the
models' own pages for input formats and the meaning of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from reflectrl.core.prompts.rendering import render
from reflectrl.core.prompts.tokens import defused
from reflectrl.core.types import UserError, named_seed
from reflectrl.wings.text.rewards.base import Component, response_of
from reflectrl.wings.text.rewards.classifiers import Classifier, Text
from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.sample import Sample


class ClassifierComponent(Component):
    """Probability of a chosen class under a classifier, or the sigmoid of a ranker's single logit.

    Subclasses define the default model, the class, and the text that the model reads.

    Args:
        model: folder, or name of a hub model.
        device: torch device, or "auto".
        dtype: dtype of the weights.
        batch_size: texts per forward pass.
        download: fetch a hub model that is not on this machine.
    """

    default: ClassVar[str] = ""
    labels: ClassVar[int | tuple[int, ...]] = 2
    chosen: ClassVar[int] = 0
    cut: ClassVar[Literal["left", "right"]] = "right"

    def __init__(
        self,
        model: str = "",
        device: str = "auto",
        dtype: Literal["float32", "bfloat16"] = "float32",
        batch_size: int = 32,
        download: bool = False,
    ) -> None:
        name = f"reward {type(self).__name__}"
        if not (model or self.default):
            raise UserError(f"{name} needs a model: the folder or hub name of a sequence classifier")
        if batch_size < 1:
            raise UserError(f"{name}: batch_size is {batch_size}; it must be at least 1")
        self.batch_size = batch_size
        self.classifier = Classifier(model or self.default, self.labels, name, device, dtype, self.cut, download)

    @property
    def fingerprint(self) -> str:
        """Identifier of the weights and of this class."""
        return f"{type(self).__name__} {self.classifier.fingerprint}"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return probabilities in [0, 1]."""
        # A completion must not be able to end a turn or the text by spelling a control token.
        tokenizer = self.classifier.tokenizer
        plain = [replace(sample, completion=defused(tokenizer, sample.completion)) for sample in samples]
        logits_SL = self.classifier.logits([self.text(sample) for sample in plain], self.batch_size)
        one_logit = logits_SL.shape[1] == 1
        scores_S = logits_SL[:, 0].sigmoid() if one_logit else logits_SL.softmax(1)[:, self.chosen]
        return [float(score) for score in scores_S]

    def text(self, sample: Sample) -> Text:
        """Return the text that the model reads: by default, the response alone."""
        return response_of(sample)


class Fluency(ClassifierComponent):
    """P(acceptable) of a classifier of linguistic acceptability (CoLA) on the response."""

    default, chosen = "textattack/roberta-base-CoLA", 1


class Safety(ClassifierComponent):
    """P(class 0: inoffensive) of a classifier of offensive language on the response, read after its parent comment.

    A decoder reads both as turns that end with end-of-text, as the published classifier does (its folder is loaded as
    it is). An encoder reads them as a pair of texts.

    Args:
        parent: read the turns before the response. False suits a classifier that was trained on single texts.
    """

    default, chosen, cut = "cardiffnlp/twitter-roberta-base-offensive", 0, "left"

    def __init__(
        self,
        model: str = "",
        parent: bool = True,
        device: str = "auto",
        dtype: Literal["float32", "bfloat16"] = "float32",
        batch_size: int = 32,
        download: bool = False,
    ) -> None:
        super().__init__(model, device, dtype, batch_size, download)
        self.parent = parent

    @property
    def fingerprint(self) -> str:
        """Identifier of the weights and of the text that is read."""
        return f"{super().fingerprint} {'thread' if self.parent else 'response'}"

    def text(self, sample: Sample) -> Text:
        """Return the thread that ends with the response, or the response alone."""
        response = response_of(sample)
        turns = _turns(sample) if self.parent else []
        if self.classifier.is_decoder:
            end = str(self.classifier.tokenizer.eos_token)
            return "".join(turn + end for turn in (*turns, response))
        return ("\n".join(turns), response) if turns else response


class Faithfulness(ClassifierComponent):
    """P(class 0: faithful) of a critic that reads the knowledge and the response."""

    default, chosen = "McGill-NLP/roberta-large-faithcritic", 0

    def text(self, sample: Sample) -> Text:
        """Return knowledge and response; UserError if the sample's meta has no knowledge."""
        knowledge = sample.meta.get("knowledge")
        if not isinstance(knowledge, str):
            raise UserError(f"reward Faithfulness: sample {sample.id!r} has no 'knowledge' in its meta")
        return knowledge, response_of(sample)


class DialogueRanker(ClassifierComponent):
    """Sigmoid of a one-logit ranker that reads the turns of a dialogue, end-of-text between them (DialogRPT)."""

    labels, cut = 1, "left"

    def text(self, sample: Sample) -> Text:
        """Return the turns of the dialogue, oldest first, and the response."""
        return str(self.classifier.tokenizer.eos_token).join([*_turns(sample), response_of(sample)])


class Engagement(DialogueRanker):
    """Score for starting a long conversation (DialogRPT's "depth")."""

    default = "microsoft/DialogRPT-depth"


class Upvote(DialogueRanker):
    """Score for getting many upvotes (DialogRPT's "updown")."""

    default = "microsoft/DialogRPT-updown"


class CometCritic(ClassifierComponent):
    """P(valid) of a critic that reads an event, and the inference as the end of a phrase for the relation.

    The critic of West et al. (2022, arXiv 2110.07178) was trained on such pairs of texts, in which PersonX and PersonY
    have first names. There, the names are drawn anew for each text. Here, they follow from the event, so an inference
    always has the same score. The critic may have one logit (its sigmoid counts) or two classes (class 1 is "valid").
    """

    labels, chosen = (1, 2), 1

    def text(self, sample: Sample) -> Text:
        """Return the event and the completed phrase.

        Raises:
            UserError: the sample's meta names no event, or no relation that the critic knows.
        """
        head, relation = sample.meta.get("head"), sample.meta.get("relation")
        if not isinstance(head, str) or relation not in CRITIC_PHRASES:
            relations = ", ".join(CRITIC_PHRASES)
            raise UserError(f"reward CometCritic: sample {sample.id!r} needs a 'head' and a 'relation' ({relations})")
        tail = f"{CRITIC_PHRASES[relation]} {response_of(sample)}"
        names = dict(zip(("PersonX", "PersonY"), names_for(head), strict=True))
        return _named(head.strip(), names), _named(tail, names)


class RewardModel(ClassifierComponent):
    """Sigmoid of a reward model's output for the dialogue that ends with the response.

    Args:
        style: format of the dialogue. "chat" is the tokenizer's own template, "oasst" marks turns by "<|prompter|>" and
            "<|assistant|>", and "plain" is prompt and completion unchanged. "auto" takes the first of these that the
            tokenizer supports.
    """

    default, labels, cut = "OpenAssistant/oasst-rm-2.1-pythia-1.4b-epoch-2.5", 1, "left"

    def __init__(
        self,
        model: str = "",
        style: Literal["auto", "chat", "oasst", "plain"] = "auto",
        device: str = "auto",
        dtype: Literal["float32", "bfloat16"] = "float32",
        batch_size: int = 16,
        download: bool = False,
    ) -> None:
        super().__init__(model, device, dtype, batch_size, download)
        tokenizer = self.classifier.tokenizer
        if style == "auto" and getattr(tokenizer, "chat_template", None):
            style = "chat"
        elif style == "auto":
            style = "oasst" if PROMPTER in tokenizer.get_vocab() else "plain"
        self.style = style

    @property
    def fingerprint(self) -> str:
        """Identifier of the weights and of the dialogue format."""
        return f"{super().fingerprint} {self.style}"

    def text(self, sample: Sample) -> Text:
        """Return the whole dialogue."""
        if self.style == "plain":
            return sample.prompt + sample.completion
        turns = [(role, text) for role, text in dialogue.split(sample.prompt) if text]
        turns = [*(turns or [(dialogue.HUMAN, sample.prompt.strip())]), (dialogue.ASSISTANT, response_of(sample))]
        tokenizer = self.classifier.tokenizer
        if self.style == "chat":
            messages = [{"role": ROLES[role], "content": text} for role, text in turns]
            return render(tokenizer, messages, open_answer=False)
        return "".join(f"{MARKS[role]}{text}{tokenizer.eos_token}" for role, text in turns)


CRITIC_PHRASES = {
    "HinderedBy": "can be hindered by",
    "xNeed": "but before, PersonX needed",
    "xWant": "as a result, PersonX wants",
    "xIntent": "because PersonX wanted",
    "xReact": "as a result, PersonX feels",
    "xAttr": "so, PersonX is seen as",
    "xEffect": "as a result, PersonX",
}
"""Relations of ATOMIC-10x, each with the phrase that its critic was trained on."""
FIRST_NAMES = (
    "James", "Mary", "Robert", "Patricia", "John", "Jennifer", "Michael", "Linda", "David", "Susan", "William", "Karen",
    "Thomas", "Sarah", "Daniel", "Nancy", "Matthew", "Lisa", "Anthony", "Betty", "Mark", "Sandra", "Paul", "Ashley",
)  # fmt: skip
"""Frequent first names."""


def names_for(event: str) -> tuple[str, str]:
    """Return two different first names for an event, the same in every run."""
    first, second = np.random.default_rng(named_seed("names", event)).choice(len(FIRST_NAMES), 2, replace=False)
    return FIRST_NAMES[first], FIRST_NAMES[second]


def _named(text: str, names: Mapping[str, str]) -> str:
    for person, name in names.items():
        text = text.replace(person, name)
    return text


def _turns(sample: Sample) -> list[str]:
    """Return the texts of the dialogue before the response, without knowledge; the prompt if it is not a dialogue."""
    return [text for _, text in dialogue.split(sample.prompt) if text] or [sample.prompt.strip()]


PROMPTER = "<|prompter|>"
MARKS = {dialogue.HUMAN: PROMPTER, dialogue.ASSISTANT: "<|assistant|>", dialogue.SYSTEM: "<|system|>"}
ROLES = {dialogue.HUMAN: "user", dialogue.ASSISTANT: "assistant", dialogue.SYSTEM: "system"}

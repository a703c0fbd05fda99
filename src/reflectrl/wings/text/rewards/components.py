"""Built-in reward components that are sequence classifiers.

Sources: "Leftover Lunch" (Baheti et al., ICLR 2024, arXiv 2305.14718, section 4) for the choice of components; the
models' own pages for input formats and the meaning of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from reflectrl.core.prompts.rendering import render
from reflectrl.core.prompts.tokens import defused
from reflectrl.core.types import UserError
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
    labels: ClassVar[int] = 2
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
        scores_S = logits_SL[:, 0].sigmoid() if self.labels == 1 else logits_SL.softmax(1)[:, self.chosen]
        return [float(score) for score in scores_S]

    def text(self, sample: Sample) -> Text:
        """Return the text that the model reads: by default, the response alone."""
        return response_of(sample)


class Fluency(ClassifierComponent):
    """P(acceptable) of a classifier of linguistic acceptability (CoLA) on the response."""

    default, chosen = "textattack/roberta-base-CoLA", 1


class Safety(ClassifierComponent):
    """P(class 0: inoffensive) of a classifier of offensive language on the response."""

    default, chosen = "cardiffnlp/twitter-roberta-base-offensive", 0


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
        turns = [said for _, said in dialogue.split(sample.prompt) if said] or [sample.prompt.strip()]
        return str(self.classifier.tokenizer.eos_token).join([*turns, response_of(sample)])


class Engagement(DialogueRanker):
    """Score for starting a long conversation (DialogRPT's "depth")."""

    default = "microsoft/DialogRPT-depth"


class Upvote(DialogueRanker):
    """Score for getting many upvotes (DialogRPT's "updown")."""

    default = "microsoft/DialogRPT-updown"


class CometCritic(ClassifierComponent):
    """P(class 1: valid) of a critic that reads an event with its relation, and the inference."""

    chosen = 1

    def text(self, sample: Sample) -> Text:
        """Return the prompt and the response."""
        return sample.prompt.strip(), response_of(sample)


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
        turns = [(role, said) for role, said in dialogue.split(sample.prompt) if said]
        turns = [*(turns or [(dialogue.HUMAN, sample.prompt.strip())]), (dialogue.ASSISTANT, response_of(sample))]
        tokenizer = self.classifier.tokenizer
        if self.style == "chat":
            messages = [{"role": ROLES[role], "content": said} for role, said in turns]
            return render(tokenizer, messages, open_answer=False)
        return "".join(f"{MARKS[role]}{said}{tokenizer.eos_token}" for role, said in turns)


PROMPTER = "<|prompter|>"
MARKS = {dialogue.HUMAN: PROMPTER, dialogue.ASSISTANT: "<|assistant|>", dialogue.SYSTEM: "<|system|>"}
ROLES = {dialogue.HUMAN: "user", dialogue.ASSISTANT: "assistant", dialogue.SYSTEM: "system"}

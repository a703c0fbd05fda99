"""The plain implementation of learning: an RL update that encodes each step's whole prompt, and `Trainer` for SFT."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from reflectrl.core.types import Step
from reflectrl.learn.losses import entropy, reinforce_loss, restricted_log_softmax
from reflectrl.models.labels import find_labels
from reflectrl.models.lm import LanguageModel

from .plain import Tokens, label_scores, legal, policy_texts, tokenized

# ---- the RL update -------------------------------------------------------------------------------------------------


class Update(NamedTuple):
    """Loss of an update, and the tokens that it encoded."""

    loss: float
    tokens: Tokens


def update_gradients(
    lm: LanguageModel,
    steps: Sequence[Step],
    minibatch: int,
    reflections: bool = True,
    advantage: float = 1.0,
    entropy_coef: float = 0.01,
) -> Update:
    """Compute the gradients of a REINFORCE update on recorded steps. They are added to `.grad`.

    The loss is the mean over the steps of -advantage · log p(recorded choice) - entropy_coef · entropy, both over the
    legal labels. Each step's whole prompt is encoded, in right-padded minibatches in the steps' order, with the logits
    of all positions. A minibatch of B prompts of T tokens keeps B · T · V logits and as many gradients.

    Args:
        minibatch: steps per forward and backward pass.
        reflections: True if the prompts contain the recorded reflections.
    """
    labels = find_labels(lm.tokenizer, max(len(step.observation.actions) for step in steps))
    total, tokens = 0.0, Tokens()
    for start in range(0, len(steps), minibatch):
        part = steps[start : start + minibatch]
        seen = [step.observation for step in part]
        texts = policy_texts(labels, seen, [step.reflection if reflections else None for step in part])
        ids_BT, mask_BT = tokenized(lm, texts, "right")
        tokens.read(mask_BT)
        scores_BA = label_scores(lm, labels, ids_BT, mask_BT).float()
        logp_BA = restricted_log_softmax(scores_BA, legal(lm, seen, scores_BA.shape[1]))
        chosen_B = logp_BA.gather(1, torch.tensor([step.action for step in part], device=lm.device)[:, None])[:, 0]
        loss = reinforce_loss(chosen_B, torch.full_like(chosen_B, advantage)) - entropy_coef * entropy(logp_BA).mean()
        loss = loss * (len(part) / len(steps))
        loss.backward()
        total += float(loss.detach())
    return Update(total, tokens)


# ---- supervised fine-tuning ----------------------------------------------------------------------------------------


class TrainerRun(NamedTuple):
    """A training by `transformers.Trainer`.

    Attributes:
        seconds: duration of the training loop.
        tokens: useful tokens, without padding.
        padded_tokens: tokens with padding.
        loss: mean over the steps, in nats per completion token.
    """

    seconds: float
    tokens: int
    padded_tokens: int
    loss: float


class _Clock(TrainerCallback):
    """Clock of the training loop, from beginning to end in seconds."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.start


class _CountingTrainer(Trainer):
    """Trainer that counts the tokens of its training batches."""

    tokens = padded_tokens = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Tensor:
        self.padded_tokens += inputs["input_ids"].numel()
        self.tokens += (
            int(inputs["attention_mask"].sum()) if "attention_mask" in inputs else inputs["input_ids"].numel()
        )
        return super().training_step(model, inputs, *rest, **named)


def trainer_sft(
    lm: LanguageModel,
    examples: Sequence[tuple[Sequence[int], int]],
    batch_size: int,
    steps: int,
    packing: bool = False,
    bf16: bool = False,
    learning_rate: float = 5e-5,
    minibatch: int = 0,
) -> TrainerRun:
    """Train `lm` in place with `transformers.Trainer`: AdamW, shuffled rows, nothing saved and nothing reported.

    Args:
        examples: (token ids, start): the loss is on `ids[start:]`, and the prompt's labels are -100.
        packing: concatenate the rows of a batch instead of padding them (`DataCollatorWithFlattening`; the attention
            mask separates them).
        bf16: autocast to bfloat16.
        minibatch: rows per forward and backward pass, a divisor of `batch_size`, whose gradients are accumulated; 0 for
            all at once.
    """
    rows = [
        {"input_ids": list(ids), "attention_mask": [1] * len(ids), "labels": [-100] * start + list(ids[start:])}
        for ids, start in examples
    ]
    lm.activate()
    clock = _Clock()
    config: Any = lm.core.config
    cached, config.use_cache = config.use_cache, False
    with tempfile.TemporaryDirectory() as folder:
        trainer = _CountingTrainer(
            model=lm.model,
            args=_arguments(folder, lm, batch_size, minibatch or batch_size, steps, bf16, learning_rate),
            train_dataset=rows,
            data_collator=DataCollatorWithFlattening() if packing else DataCollatorForSeq2Seq(lm.tokenizer),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        loss = trainer.train().training_loss
    for trace in ("forward", "_original_forward", "_is_accelerate_prepared"):  # autocast leaves these on the model
        vars(lm.model).pop(trace, None)
    lm.model.zero_grad(set_to_none=True)
    lm.model.eval()
    config.use_cache = cached
    return TrainerRun(clock.seconds, trainer.tokens, trainer.padded_tokens, loss)


def _arguments(
    folder: str, lm: LanguageModel, batch_size: int, minibatch: int, steps: int, bf16: bool, learning_rate: float
) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=minibatch,
        gradient_accumulation_steps=batch_size // minibatch,
        max_steps=steps,
        learning_rate=learning_rate,
        bf16=bf16,
        use_cpu=lm.device.type == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )

"""Reader: a small language model that reads the search's first files, and chooses among them.

For each file it reads the path, the names of definitions, the files that name it, the lines that fit best, and then the
question. It judges a file by how likely its words make the question (query likelihood, as in Sachan et al., EMNLP
2022), and by a linear head on the last hidden state. The choice is a softmax over the sums of the reader's scores and
those that the files had before, from search and decision model.

The reader is SmolLM2-135M with a low-rank adapter (Hu et al., ICLR 2022), which `python -m benchmarks.locate_reader`
trained listwise on questions mined from commits. The adapter is data of this package, the model is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reflectrl.core.advice import install
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.excerpts import Excerpt

if TYPE_CHECKING:
    from torch import Tensor, nn

    from reflectrl.models.lm import LanguageModel

BASE = "smollm2-135m"
UNSURE = 0.5
"""Probability of the first file below which files are read. Reading costs two seconds. On the development repositories
it was worth as much for these two thirds of the questions as for all of them.
"""
NAME_TOKENS, NAMING_TOKENS, LINE_TOKENS, QUESTION_TOKENS = 40, 30, 180, 80
"""Largest numbers of tokens that are read of a file's names, of the files that name it, of its lines, and of the
question.
"""
SHARPNESS = 2.0
"""Factor of the scores whose softmax is the belief in each file: fitted to development repositories and SWE-QA."""
SCALE = 2.0
"""Factor of the adapter's products."""
ASKED = "\nIs the answer in this file? Answer:"
Floats = NDArray[np.float32]


class Prompt(NamedTuple):
    """Tokens that are read for a file.

    Attributes:
        ids: all tokens.
        question: place of the question's tokens among them.
    """

    ids: list[int]
    question: slice


def prompt(encode: Callable[[str], list[int]], question: str, excerpt: Excerpt) -> Prompt:
    """Return what is read for a file: the excerpt, then the question.

    Args:
        encode: function that returns the tokens of a text.
    """
    before = [
        *encode(f"File: {excerpt.path}\nDefines: "),
        *encode(excerpt.names)[:NAME_TOKENS],
        *encode("\nNamed in: "),
        *encode(excerpt.naming)[:NAMING_TOKENS],
        *encode("\n```\n"),
        *encode(excerpt.lines)[:LINE_TOKENS],
        *encode("\n```\nQuestion that this file answers:"),
    ]
    asked = encode(f" {question}")[:QUESTION_TOKENS]
    return Prompt([*before, *asked, *encode(ASKED)], slice(len(before), len(before) + len(asked)))


def judge(model: Any, prompts: Sequence[Prompt], head_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each file, the mean log-likelihood of the question's tokens, and the head's value, both (F,).

    Gradients flow, unless the caller prevents it.

    Args:
        model: causal language model of the Llama family.
        prompts: a prompt for each file, all with the same question.
        head_D: weights of the last hidden state, which is scaled to a mean square of 1.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows = [torch.tensor(prompt.ids) for prompt in prompts]
    ids_FT = pad_sequence(rows, batch_first=True)
    mask_FT = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    hidden_FTD = model.model(input_ids=ids_FT, attention_mask=mask_FT).last_hidden_state
    of_files = list(zip(prompts, hidden_FTD, strict=True))
    # the state before each token predicts it
    before_FQD = torch.stack(
        [hidden_TD[prompt.question.start - 1 : prompt.question.stop - 1] for prompt, hidden_TD in of_files]
    )
    asked_FQ = torch.stack([row[prompt.question] for prompt, row in zip(prompts, rows, strict=True)])
    logp_FQV = model.lm_head(before_FQD).float().log_softmax(-1)
    likelihood_F = logp_FQV.gather(-1, asked_FQ[..., None]).mean((1, 2))
    last_FD = torch.stack([hidden_TD[len(prompt.ids) - 1] for prompt, hidden_TD in of_files]).float()
    # no matrix product, which mixed precision would round
    head_F = (last_FD * head_D).sum(-1) / last_FD.pow(2).mean(-1).sqrt()
    return likelihood_F, head_F


class Reader:
    """Language model that judges files. Torch computes it.

    Args:
        lm: language model, with the adapter's products already added to its weights.
        head_D: weights of the last hidden state.
        weights: of the score before, and of the mean log-likelihood of the question's tokens.
        unsure: probability of the first file below which to read.
    """

    def __init__(self, lm: LanguageModel, head_D: Tensor, weights: Sequence[float], unsure: float = UNSURE) -> None:
        self._lm, self._head_D, self.unsure = lm, head_D, unsure
        self._of_before, self._of_likelihood = weights

    @classmethod
    def load(cls, model: str = BASE, adapter: Path | None = None, unsure: float = UNSURE) -> Reader:
        """Load a model, and add the adapter to it.

        Args:
            model: folder of a Llama model, or name of one that is on this machine.
            adapter: file of the adapter; by default the one in the package.
            unsure: as for the class.

        Raises:
            UserError: torch is not installed, the model is not on this machine, or the adapter does not fit it.
        """
        try:
            from safetensors.torch import load_file

            from reflectrl.core.config.recipe import ModelConfig
            from reflectrl.models.load import load_model
        except ImportError as error:
            raise UserError(f"a reader needs torch; {install()}") from error
        lm = load_model(model, ModelConfig(mixed_play="auto", chat="off"))
        if adapter is None:
            with as_file(files("reflectrl.wings.autoexplore.locate").joinpath("data/reader.safetensors")) as path:
                tensors = load_file(path)
        else:
            tensors = load_file(adapter)
        head_D, weights = tensors.pop("head").float(), tensors.pop("shares").tolist()
        add_adapter(lm.core, tensors)
        return cls(lm, head_D, weights, unsure)

    def scores(self, question: str, excerpts: Sequence[Excerpt], before_F: Floats) -> Floats:
        """Return the sums of the scores before and the reader's scores, (F,); larger is better."""
        return self.total(before_F, *self.judge(question, excerpts))

    def total(self, before_F: Floats, likelihood_F: Floats, head_F: Floats) -> Floats:
        """Return the weighted sums of the scores before, the likelihoods and the head's values, (F,)."""
        return (self._of_before * before_F + self._of_likelihood * likelihood_F + head_F).astype(np.float32)

    def judge(self, question: str, excerpts: Sequence[Excerpt]) -> tuple[Floats, Floats]:
        """Return, for each file, the mean log-likelihood of the question's tokens, and the head's value, both (F,)."""
        prompts = [prompt(self._lm.encode, question, excerpt) for excerpt in excerpts]
        with self._lm.playing():
            likelihood_F, head_F = judge(self._lm.core, prompts, self._head_D)
        return likelihood_F.numpy(), head_F.numpy()


def add_adapter(model: nn.Module, matrices: dict[str, Tensor]) -> None:
    """Add the products of an adapter to a model's weights: W + SCALE · B A.

    Args:
        matrices: name of a linear layer → matrices, as "NAME.A" (rank, inputs) and "NAME.B" (outputs, rank).

    Raises:
        UserError: the model lacks a layer, or a layer has another shape.
    """
    import torch

    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in sorted({key.rpartition(".")[0] for key in matrices}):
            product = SCALE * matrices[f"{name}.B"].float() @ matrices[f"{name}.A"].float()
            weight = parameters.get(f"{name}.weight")
            if weight is None or weight.shape != product.shape:
                raise UserError(f"the reader's adapter was trained for {BASE}; this is another model")
            weight.add_(product)

"""Reader: a small language model that reads the search's first files, and chooses among them.

For each file it reads the path, the names of definitions, the passage that fits best, and then the question. It judges
a file by how likely its words make the question (query likelihood, as in Sachan et al., EMNLP 2022), and by a linear
head on the last hidden state. The choice is a softmax over the sums of the search's and the reader's scores.

The reader is SmolLM2-135M with a low-rank adapter (Hu et al., ICLR 2022), which `python -m benchmarks.locate_reader`
trained listwise on questions mined from commits. The adapter is data of this package, the model is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reflectrl.core.advice import install
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from reflectrl.models.lm import LanguageModel

BASE = "smollm2-135m"
READ = 8
"""Number of files that are read for a question."""
UNSURE = 0.5
"""Probability of the search's first file below which files are read. Reading costs two seconds. On the development
repositories it was worth as much for these two thirds of the questions as for all of them.
"""
NAME_TOKENS, PASSAGE_TOKENS, QUESTION_TOKENS = 50, 150, 80
"""Largest numbers of tokens that are read of a file's names and passage, and of the question."""
NAME_CHARACTERS, PASSAGE_CHARACTERS = 400, 1500
"""Characters of names and passage that are tokenised: more than the tokens above can use."""
SCALE = 2.0
"""Factor of the adapter's products."""
ASKED = "\nIs the answer in this file? Answer:"
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Excerpt:
    """Part of a file that the reader sees: its path, the names of its definitions, and one passage."""

    path: str
    names: str
    passage: str

    @classmethod
    def of(cls, path: str, names: Sequence[str], passage: str) -> Excerpt:
        """Cut names and passage to what is read."""
        return cls(path, ", ".join(filter(None, names))[:NAME_CHARACTERS], passage[:PASSAGE_CHARACTERS])


class Reader:
    """Language model that judges files. Torch computes it.

    Args:
        lm: language model, with the adapter's products already added to its weights.
        head_D: weights of the last hidden state.
        shares: weights of the search's score, and of the mean log-likelihood of the question's tokens.
        unsure: probability of the search's first file below which to read.
    """

    def __init__(self, lm: LanguageModel, head_D: Tensor, shares: Sequence[float], unsure: float = UNSURE) -> None:
        self._lm, self._head_D, self.unsure = lm, head_D, unsure
        self._of_search, self._of_likelihood = shares

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
                weights = load_file(path)
        else:
            weights = load_file(adapter)
        head_D, shares = weights.pop("head").float(), weights.pop("shares").tolist()
        add_adapter(lm.core, weights)
        return cls(lm, head_D, shares, unsure)

    def scores(self, question: str, excerpts: Sequence[Excerpt], search_scores: Floats) -> Floats:
        """Return the sums of the search's scores and the reader's scores, (F,); larger is better."""
        return self.total(search_scores, *self.judge(question, excerpts))

    def total(self, search_F: Floats, likelihood_F: Floats, head_F: Floats) -> Floats:
        """Return the weighted sums of the search's scores, the likelihoods and the head's values, (F,)."""
        return (self._of_search * search_F + self._of_likelihood * likelihood_F + head_F).astype(np.float32)

    def judge(self, question: str, excerpts: Sequence[Excerpt]) -> tuple[Floats, Floats]:
        """Return, for each file, the mean log-likelihood of the question's tokens, and the head's value, both (F,)."""
        import torch

        asked = self._lm.encode(f" {question}")[:QUESTION_TOKENS]
        heads = [self._head(excerpt) for excerpt in excerpts]
        tail = self._lm.encode(ASKED)
        rows = [[*head, *asked, *tail] for head in heads]
        ids_FT, mask_FT = _padded(rows)
        with self._lm.playing():
            hidden_FTD = self._lm.core.model(input_ids=ids_FT, attention_mask=mask_FT).last_hidden_state  # type: ignore[operator]
            predicting_FQD = torch.stack(
                [
                    hidden_TD[len(head) - 1 : len(head) - 1 + len(asked)]
                    for head, hidden_TD in zip(heads, hidden_FTD, strict=True)
                ]
            )
            logits_FQV = self._lm.core.lm_head(predicting_FQD).float()  # type: ignore[operator]
            targets_FQ1 = torch.tensor(asked).expand(len(rows), -1)[..., None]
            likelihood_F = logits_FQV.log_softmax(-1).gather(-1, targets_FQ1).mean((1, 2))
            last_FD = torch.stack(
                [hidden_TD[len(row) - 1] for row, hidden_TD in zip(rows, hidden_FTD, strict=True)]
            ).float()
            # no matrix product, which mixed precision would round
            head_F = (last_FD * self._head_D).sum(-1) / last_FD.pow(2).mean(-1).sqrt()
        return likelihood_F.numpy(), head_F.numpy()

    def _head(self, excerpt: Excerpt) -> list[int]:
        """Return the tokens before the question."""
        encode = self._lm.encode
        return [
            *encode(f"File: {excerpt.path}\nDefines: "),
            *encode(excerpt.names)[:NAME_TOKENS],
            *encode("\n```\n"),
            *encode(excerpt.passage)[:PASSAGE_TOKENS],
            *encode("\n```\nQuestion that this file answers:"),
        ]


def add_adapter(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Add the products of an adapter to a model's weights: W + SCALE · B A.

    Args:
        weights: name of a linear layer → matrices, as "NAME.A" (rank, inputs) and "NAME.B" (outputs, rank).

    Raises:
        UserError: the model lacks a layer, or a layer has another shape.
    """
    import torch

    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in sorted({key.rpartition(".")[0] for key in weights}):
            product = SCALE * weights[f"{name}.B"].float() @ weights[f"{name}.A"].float()
            weight = parameters.get(f"{name}.weight")
            if weight is None or weight.shape != product.shape:
                raise UserError(f"the reader's adapter was trained for {BASE}; this is another model")
            weight.add_(product)


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids, padded with 0 at the end, and the mask of those that are no padding, both (F, T)."""
    import torch

    ids_FT = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    mask_FT = torch.zeros_like(ids_FT)
    for row, ids_T, mask_T in zip(rows, ids_FT, mask_FT, strict=True):
        ids_T[: len(row)] = torch.tensor(row)
        mask_T[: len(row)] = 1
    return ids_FT, mask_FT

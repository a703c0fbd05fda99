"""Comparison of the packed backend with the plain backend, for every model that is loaded.

There are many families of models, and some compute things between their layers or after their head that the engine does
not implement. So a few prompts go through everything that play and learning use: packed prompts with common prefixes,
growing caches, speculative decoding, actions scored by their texts, and rows of the head. An option of the engine that
fails or gives different numbers is not used with this model, and a warning says so.

A model in 16 bits is checked in float32 if there is enough memory. In bfloat16, rounding alone changes the logits of a
deep model by more than 1, which would hide a mistake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError, named_seed
from reflectrl.models.backend import Candidates, Counters
from reflectrl.models.forward import drops, walk_of
from reflectrl.models.generation import DraftModel
from reflectrl.models.lm import EngineOptions, LanguageModel
from reflectrl.models.machine import release_memory
from reflectrl.models.memory import free_bytes
from reflectrl.models.packed import PackedBackend
from reflectrl.models.plain import PlainBackend, own_logits
from reflectrl.models.sharing import Ids, KVCache, pack

FULL, HALF = 1e-4, 0.1
"""Largest difference that counts as rounding: in float32, and with fewer bits if that cannot be avoided. Differences of
hidden states are relative to their norm, and those between logits or log-probabilities (nats) to 1 + their size."""

ROUNDINGS, WIDEST = 3, 1e-3
"""Limits for deep models, whose rounding may exceed FULL. ROUNDINGS times the difference between the model's own
forward pass in float32 and in float64 is allowed, but never more than WIDEST."""

SPREADS = (1.0, 10.0, 50.0)
"""Standard deviations of logits at which the head is checked. A new model has small logits, at which a soft cap would
not show."""

OPERATIONS = 1e9
"""Approximate number of multiplications for the longest prompt, so that a small model is checked on a long context."""

SHORT, LONG = 40, 512
"""Tokens of the shortest and of the longest history, as far as the context allows."""

WRITTEN = 6
"""Number of tokens written after a prompt."""

logger = logging.getLogger("reflectrl")
logged: set[str] = set()
"""Warnings that this process has logged already, without the models' names."""


HIDDEN, LOGITS = "hidden states", "logits"
"""Kinds of compared tensors, each with its own limit."""


class Candidate(NamedTuple):
    """Candidate configuration of the engine.

    Attributes:
        engine_options: its options.
        words: warning if this candidate is chosen; "" for none.
        attention: the library's attention implementation to set; "" leaves it unchanged.
    """

    engine_options: EngineOptions
    words: str = ""
    attention: str = ""


def verify(lm: LanguageModel, name: str) -> LanguageModel:
    """Return the same model with only those engine options that give the numbers of its own forward pass.

    Args:
        lm: the model with the engine options to check. Without `packed`, only the plain backend is checked.

    Raises:
        UserError: its own forward pass fails, or it is not a causal language model.
    """
    options, warnings = find_exact_options(lm, name)
    warn_once(lm, name, warnings)
    return replace(lm, engine_options=options)


def find_exact_options(lm: LanguageModel, name: str) -> tuple[EngineOptions, list[str]]:
    """Return the engine options that give the model's own numbers, and warnings about the ones that do not.

    Raises:
        UserError: as `verify`.
    """
    if lm.encoder_decoder:  # it has a backend of its own, without options
        return lm.engine_options, []
    heads = [
        Candidate(lm.engine_options),
        Candidate(replace(lm.engine_options, rows=False), "choices compute all rows of its own head"),
    ]
    with _in_float32(lm):
        trial = _Trial(replace(lm, counters=Counters()), name)
        with torch.inference_mode():
            tried = trial.first_exact(trial.lm, heads, trial.try_head) if lm.engine_options.packed else trial.lm
            tried = trial.first_exact(tried, _bodies(tried), trial.try_body)
    return tried.engine_options, trial.warnings


def warn_once(lm: LanguageModel, name: str, warnings: Sequence[str]) -> None:
    """Log which engine features are disabled for this model, once per process and message.

    A run loads models of the same family again and again.
    """
    message = f"({lm.core.config.model_type}): {'; '.join(warnings)}"  # type: ignore[union-attr]
    if warnings and message not in logged:
        logged.add(message)
        logger.warning("reflectrl: model %s %s", name, message)


@contextmanager
def _in_float32(lm: LanguageModel) -> Iterator[None]:
    """Convert a 16-bit model's weights to float32 within the block, and back to the same bits after it.

    Quantised models, and models for which there is not enough memory, are left unchanged.
    """
    half = [p for p in lm.model.parameters() if p.dtype in (torch.bfloat16, torch.float16)]
    quantised = getattr(lm.core.config, "quantization_config", None) is not None
    if quantised or 4 * sum(p.numel() for p in half) > free_bytes(lm.device):
        half = []
    dtypes = [p.dtype for p in half]
    try:
        for parameter in half:
            parameter.data = parameter.data.float()
        yield
    finally:
        for parameter, dtype in zip(half, dtypes, strict=True):
            parameter.data = parameter.data.to(dtype)
        if half:
            release_memory()


@contextmanager
def _in_float64(lm: LanguageModel) -> Iterator[None]:
    """Convert a float32 model to float64 within the block.

    Raises:
        MemoryError: there is not enough memory.
    """
    parameters = [p for p in lm.model.parameters() if p.dtype == torch.float32]
    if 8 * sum(p.numel() for p in parameters) > free_bytes(lm.device):
        raise MemoryError
    before = [(parameter, parameter.data) for parameter in parameters]
    try:
        with torch.inference_mode(False):  # tensors created in inference mode can never have gradients
            for parameter in parameters:
                parameter.data = parameter.data.double()
        yield
    finally:
        with torch.inference_mode(False):
            for parameter, data in before:
                parameter.data = data
        release_memory()


def _bodies(lm: LanguageModel) -> list[Candidate]:
    """Return the candidates for running a model's layers, the fastest first."""
    candidates = list[Candidate]()
    if lm.engine_options.packed:
        candidates += _packed_candidates(lm.engine_options, has_own_loop=walk_of(lm.core) is not None)
    return candidates + _plain_candidates(lm, slower=bool(candidates))


def _packed_candidates(wanted: EngineOptions, has_own_loop: bool) -> list[Candidate]:
    """Return the wanted options, and then the packed backend with fewer and fewer of them.

    Args:
        has_own_loop: whether the engine has its own loop over the blocks of this family.
    """
    loops = [(False, False)]  # (blocks, compiled): the library's forward pass
    if has_own_loop:
        loops.insert(0, (True, False))
        if wanted.compiled:
            loops.insert(0, (True, True))
    candidates = list[Candidate]()
    for batched, graphs in dict.fromkeys(((wanted.batched, wanted.graphs), (wanted.batched, False), (False, False))):
        for blocks, compiled in loops:
            if graphs and not blocks:
                continue  # only the engine's own loop is recorded
            slower = list[str]()
            if wanted.compiled and not compiled:
                slower.append("its layers are not compiled")
            if has_own_loop and not blocks:
                slower.append("its layers run through the library")
            if wanted.batched and not batched:
                slower.append("its prompts are attended one by one")
            if has_own_loop and wanted.graphs and not graphs:
                slower.append("its decoding passes are not recorded")
            options = replace(wanted, blocks=blocks, compiled=compiled, batched=batched, graphs=graphs)
            candidates.append(Candidate(options, ", ".join(slower)))
    return candidates


def _plain_candidates(lm: LanguageModel, slower: bool) -> list[Candidate]:
    """Return the plain backend with and without the library's cache, each with the model's own and eager attention.

    Args:
        slower: whether the packed backend was a candidate, in which case even the first of these needs a warning.
    """
    core: Any = lm.core
    cached = replace(lm.engine_options, packed=False, compiled=False, graphs=False)
    candidates = list[Candidate]()
    for options, without in ((cached, ""), (replace(cached, cache=False), ", without a cache")):
        for attention in dict.fromkeys((str(core.config._attn_implementation), "eager")):
            warning = ""
            if slower or candidates:
                warning = f"it runs step by step through its own forward pass{without}, which is correct but slower"
            candidates.append(Candidate(options, warning, attention))
    return candidates


class _Trial:
    """Check of a single model: prompts, and the results of the model's own forward pass with eager attention."""

    def __init__(self, lm: LanguageModel, name: str) -> None:
        self.lm, self.name = lm, name
        self.core: Any = lm.core
        exact = lm.dtype == torch.float32 and getattr(self.core.config, "quantization_config", None) is None
        self.limits = dict.fromkeys((HIDDEN, LOGITS), FULL if exact else HALF)
        self.may_widen = exact
        self.warnings: list[str] = []
        self._known: dict[Ids, tuple[Tensor, Tensor]] = {}
        rows = min(len(lm.tokenizer), self.core.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
        special = set(lm.tokenizer.all_special_ids)
        usual = [token for token in range(rows) if token not in special] or list(range(rows))
        room = max(SHORT // 2, lm.context - 2 * WRITTEN)
        affordable = int(OPERATIONS / sum(p.numel() for p in self.core.parameters()))
        rng = np.random.default_rng(named_seed("proof"))
        drawn = rng.choice(usual, size=min(room, max(SHORT + 8, min(LONG, affordable)))).tolist()
        self.long: Ids = tuple(drawn)
        self.branch: Ids = (*self.long[: min(SHORT, room - 8)], *self.long[5:0:-1])
        self.tiny: Ids = self.long[7:4:-1]
        self.end = int(lm.tokenizer.eos_token_id)
        lm.activate()
        with torch.inference_mode():
            self._refuse_unless_causal()

    def _refuse_unless_causal(self) -> None:
        early = self.branch[:-2]
        try:
            early_TV = self.expected(early)[1]
            hidden_TD, logits_TV = self.expected((*self.branch, *self.tiny[:2]))
            own_TV = own_logits(self.core, hidden_TD)
        except Exception as error:  # of any kind, since a model may bring its own code
            raise UserError(f"model {self.name!r}: its own forward pass fails: {one_line(error)[:200]}") from error
        if logits_TV.isnan().any():
            raise UserError(f"model {self.name!r}: its own forward pass gives NaN (damaged weights?)")
        if not self._is_rounding(_distance(own_TV, logits_TV)):
            raise UserError(f"model {self.name!r}: its logits do not follow from its layers' hidden states alone")
        if not self._is_rounding(_distance(logits_TV[: len(early)], early_TV)):
            raise UserError(f"model {self.name!r} reads ahead: it is not a causal language model")

    def expected(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """Return hidden states (T, D) and logits (T, V) of a sequence by the model's own forward pass.

        Results of a longer sequence with this prefix are reused, because the model is causal.
        """
        for cached_ids, (hidden_TD, logits_TV) in self._known.items():
            if cached_ids[: len(ids)] == ids:
                return hidden_TD[: len(ids)], logits_TV[: len(ids)]
        own = self.core.config._attn_implementation
        self.core.set_attn_implementation("eager")  # fused attention ignores features that it lacks
        try:
            self._known[ids] = PlainBackend(self.lm).forward(ids)[:2]
        finally:
            self.core.set_attn_implementation(own)
        return self._known[ids]

    def first_exact(
        self, lm: LanguageModel, candidates: Sequence[Candidate], check: Callable[[LanguageModel], None]
    ) -> LanguageModel:
        """Return the model with the first candidate that passes `check`.

        Raises:
            UserError: no candidate passes.
        """
        problem = ""
        for candidate in candidates:
            tried = replace(lm, engine_options=candidate.engine_options)
            if candidate.attention:
                self.core.set_attn_implementation(candidate.attention)
            try:
                check(tried)
            except Exception as error:  # of any kind: the engine was not written for this model's code
                problem = problem or (str(error) if isinstance(error, UserError) else one_line(error))
                continue
            if candidate.words:
                self.warnings.append(f"{candidate.words} ({problem[:100]})" if problem else candidate.words)
            return tried
        raise UserError(f"model {self.name!r}: its own forward pass gives inconsistent numbers ({problem[:200]})")

    def require(self, what: str, actual: Tensor, expected: Tensor) -> None:
        """Raise UserError if logits or log-probabilities differ by more than rounding."""
        if not self._is_rounding(distance := _distance(actual, expected)):
            raise UserError(f"{what} differs by {distance:.2g}")

    def _is_rounding(self, distance: float, of: str = LOGITS) -> bool:
        """Return whether a difference is within this model's rounding. May widen the limits, at most once."""
        if self.may_widen and self.limits[of] < distance <= WIDEST:
            self.may_widen = False
            self._widen()
        return distance <= self.limits[of]

    def _widen(self) -> None:
        """Raise the limits to what rounding alone explains, if the model's own forward pass works in float64."""
        prompts = (self.long, self.branch, self.tiny)
        rounded = [self.expected(ids) for ids in prompts]
        cached_outputs, self._known = self._known, {}
        try:
            with _in_float64(self.lm):
                exact = [self.expected(ids) for ids in prompts]
        except Exception:  # of any kind: a layer may not support float64, and then the limits stay as they are
            return
        finally:
            self._known = cached_outputs
        for (hidden_TD, logits_TV), (exact_TD, exact_TV) in zip(rounded, exact, strict=True):
            rounding_errors = {HIDDEN: _farthest(hidden_TD, exact_TD), LOGITS: _distance(logits_TV[-1:], exact_TV[-1:])}
            for quantity, rounding in rounding_errors.items():
                self.limits[quantity] = max(self.limits[quantity], min(WIDEST, ROUNDINGS * rounding))

    # ---- what is tried ---------------------------------------------------------------------------------------------

    def try_head(self, lm: LanguageModel) -> None:
        """Check logits of all tokens, of some tokens, and of a token per state, from hidden states of several sizes."""
        backend = PackedBackend(lm)
        hidden_TD, logits_TV = (part[-2:] for part in self.expected(self.branch))
        rows = torch.linspace(0, logits_TV.shape[1] - 1, 5, device=lm.device).long()
        states = torch.arange(5, device=lm.device) % 2
        for scale in (1.0, *(spread / max(1e-6, float(logits_TV.float().std())) for spread in SPREADS)):
            scaled_TD = hidden_TD * scale
            own_TV = own_logits(self.core, scaled_TD)
            self.require("the head", backend.logits(scaled_TD), own_TV)
            self.require("some rows of the head", backend.logits(scaled_TD, rows), own_TV[:, rows])
            self.require("a row of the head", backend.token_logits(scaled_TD, states, rows), own_TV[states, rows])

    def try_body(self, lm: LanguageModel) -> None:
        """Check everything that play and learning do with the layers."""
        self._try_packed(lm)
        # With dropout or checkpointing, learning uses the library's forward pass and play does not: check both.
        learns_otherwise = drops(self.core) or getattr(self.core, "recomputes", False)
        if lm.engine_options.packed and lm.engine_options.blocks and learns_otherwise:
            self._try_packed(replace(lm, engine_options=replace(lm.engine_options, blocks=False)))
        prompts = [self.long, self.branch]
        caches = [KVCache() for _ in prompts]
        lm.backend.read([prompt[: len(prompt) * 2 // 3] + self.tiny for prompt in prompts], caches=caches)
        for hidden_D, prompt in zip(lm.backend.read(prompts, caches=caches), prompts, strict=True):
            self._require_hidden("a growing prompt", hidden_D[None], prompt)
        first, second = self.tiny[:2]
        texts = Candidates(((first, self.end), (first, second, self.end)), (1, 2))
        expected_PA = torch.stack([self._nats(self.branch, ids).sum() for ids in texts.ids])[None]
        actual_PA, _ = lm.backend.score(pack([self.branch]), [texts], "sum")
        self.require("a text after a packed prompt", actual_PA, expected_PA)
        actual_PA, _ = lm.backend.score([self.branch], [texts], "sum", [KVCache()])
        self.require("a text after a growing prompt", actual_PA, expected_PA)
        self._try_writing(lm)

    def _try_packed(self, lm: LanguageModel) -> None:
        prompts = [self.long, self.branch, self.long[: -len(self.long) // 8], self.tiny]
        packing = pack(prompts)
        hidden_ND = lm.backend.read(packing, "all")
        for i, prompt in enumerate(prompts):
            self._require_hidden("a packed prompt", hidden_ND[packing.token_indices(i).tolist()], prompt)

    def _try_writing(self, lm: LanguageModel) -> None:
        prompts, draft_model = [self.branch, self.tiny], DraftModel()
        for _ in range(2):  # the second time, the draft model guesses what was written the first time
            generators = [np.random.default_rng(0) for _ in prompts]
            written = lm.backend.write(prompts, WRITTEN, _greedy, generators, draft_model=draft_model)
            for prompt, (ids, nats) in zip(prompts, written, strict=True):
                if ids:
                    self.require("a written text", torch.tensor(nats), self._nats(prompt, ids).cpu())

    def _nats(self, prompt: Ids, ids: Ids) -> Tensor:
        """Return the log-probability (T,) of each of the T tokens that follow a prompt."""
        logp_TV = self.expected((*prompt, *ids[:-1]))[1][len(prompt) - 1 :].float().log_softmax(-1)
        return logp_TV.gather(-1, torch.tensor(ids, device=logp_TV.device)[:, None])[:, 0]

    def _require_hidden(self, what: str, found_TD: Tensor, prompt: Ids) -> None:
        """Check the hidden states of a prompt's last tokens, and the logits of the last token."""
        hidden_TD, logits_TV = (part[-len(found_TD) :] for part in self.expected(prompt))
        if not self._is_rounding(farthest := _farthest(found_TD, hidden_TD), HIDDEN):
            raise UserError(f"{what} differs by {farthest:.2g}")
        self.require(what, own_logits(self.core, found_TD[-1:]), logits_TV[-1:])


def _greedy(logits_BV: Tensor, _: object) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens (B,) and their log-probabilities (B,)."""
    logp_B, tokens_B = logits_BV.log_softmax(-1).max(-1)
    return tokens_B, logp_B


def _farthest(found_TD: Tensor, wanted_TD: Tensor) -> float:
    """Return the largest difference of hidden states, relative to their norm."""
    error_T = (found_TD - wanted_TD).float().norm(dim=-1) / wanted_TD.float().norm(dim=-1).clamp(min=1e-6)
    return float(error_T.max())


def _distance(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference of logits, relative to 1 + their size; NaN if either tensor has a NaN."""
    actual, expected = actual.float(), expected.float()
    return float(((actual - expected).abs() / (1 + expected.abs())).max())

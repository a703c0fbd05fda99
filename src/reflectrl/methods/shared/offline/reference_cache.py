"""Cache of the reference's log-probabilities and values on the data, computed once and kept under a fingerprint.

Training then needs one model in memory. A cache is used only if it was made from the same data, reference weights,
settings and code. Otherwise it is refused with an error that names what differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reflectrl.core.digests import require_undamaged
from reflectrl.core.json_lines import read_json
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import recover, write_folder
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.reference_value import Log, fit_value, prompt_values
from reflectrl.models.cards import fingerprint
from reflectrl.models.lm import LanguageModel
from reflectrl.models.sharing import Ids

Cached = TypeVar("Cached")

CARD, TENSORS = "reference_cache.json", "reference_cache.safetensors"
"""Files of a cache: the fingerprints of its inputs, and its tensors."""

CODE = (
    "completions.py", "reference_value.py", "reference_cache.py", "../../../learn/steps.py",
    "../../../learn/trainer.py",
)  # fmt: skip
"""Source files that a cache depends on."""


@dataclass(frozen=True)
class ReferenceCache:
    """Log-probabilities, values and advantages of N completions under the reference.

    Attributes:
        ref_logp_NT: log-probability of each completion's tokens (nats), padded with 0.
        values_N: V of each prompt, in mapped reward units.
        advantages_N: R - V, signed (with an utterance-level critic, Q - V).
    """

    ref_logp_NT: Tensor
    values_N: Tensor
    advantages_N: Tensor

    @property
    def weights_N(self) -> Tensor:
        """Advantages clamped at 0: max(R - V, 0), or max(Q - V, 0)."""
        return self.advantages_N.clamp_min(0)


class Outcomes(NamedTuple):
    """Training data of the value: prompts and the returns that followed them.

    Attributes:
        returns_P: returns, mapped in the same way as the rewards of the data.
        units: task or group of each prompt.
    """

    prompts: Sequence[Ids]
    returns_P: Tensor
    units: Sequence[str]


def score_reference(data: Dataset, values_N: Tensor) -> ReferenceCache:
    """Score every completion under the data's model, which is the reference as long as it has not been trained."""
    return ReferenceCache(reference_logprobs(data), values_N, data.rewards_N - values_N)


@torch.no_grad()
def reference_logprobs(data: Dataset) -> Tensor:
    """Return log-probabilities of all completions, (N, T), on the CPU."""
    logps: list[Tensor] = [torch.empty(0)] * len(data)
    prompts = data.completions.prompts
    for part in data.chunks(sorted(range(len(data)), key=lambda i: prompts[i])):
        lengths = data.completions.lengths(part).tolist()
        for row, logp_T, length in zip(part, data.completions.logprobs(part).cpu(), lengths, strict=True):
            logps[row] = logp_T[:length]
    return pad_sequence(logps, batch_first=True)


def fit_reference(
    data: Dataset, config: OfflineConfig, seed: int, log: Log, outcomes: Callable[[], Outcomes] | None = None
) -> ReferenceCache:
    """Fit the value of the data's model, and score all completions under it. `cached_reference` has the arguments."""
    lm, prompts = data.completions.lm, data.completions.prompts
    targets = outcomes() if outcomes else Outcomes(prompts, data.rewards_N, data.units)
    most = config.max_value or max(float(data.rewards_N.max()), float(targets.returns_P.max()))
    head = fit_value(lm, *targets, most if config.value_output == "sigmoid" else None, config, seed, log)
    return score_reference(data, prompt_values(lm, head, prompts))


def cached_reference(
    folder: Path,
    data: Dataset,
    config: OfflineConfig,
    seed: int,
    log: Log,
    outcomes: Callable[[], Outcomes] | None = None,
    needs_value: bool = True,
) -> ReferenceCache:
    """Load the cache of the data, or make it: fit the value, then score all completions under the reference.

    Args:
        folder: folder of the cache.
        data: data set whose model is the reference.
        log: receives the value's losses, one dictionary per epoch.
        outcomes: plays the reference and returns what it earned. With None, the value is fitted to the logged rewards,
            so it is the value of the policy that wrote the data.
        needs_value: False skips the fit and sets V to 0, for algorithms that do not use it.

    Raises:
        UserError: the folder holds a cache with another fingerprint.
    """
    names = [name for name in vars(config) if name.startswith("value_")] + ["max_value", "held_out", "gamma"]
    settings = {name: getattr(config, name) for name in names} if needs_value else {}

    def make() -> ReferenceCache:
        if not needs_value:
            return score_reference(data, torch.zeros(len(data)))
        return fit_reference(data, config, seed, log, outcomes)

    played = outcomes is not None
    fingerprints = fingerprints_of(data, {**settings, "seed": seed, "played": played, "value": needs_value})
    return load_or_make(folder, fingerprints, make, ReferenceCache)


# ---- fingerprints ----------------------------------------------------------------------------------------------------


def fingerprints_of(data: Dataset, settings: Mapping[str, object], code: Sequence[str] = ()) -> dict[str, str]:
    """Return, by name, the fingerprints of everything that a cache depends on.

    Args:
        code: further source files that this cache depends on, relative to this file's folder.
    """
    lm = data.completions.lm
    return {
        "data": data.fingerprint(),
        "reference": weights_fingerprint(lm),
        "tokenizer": fingerprint(lm.tokenizer),
        "settings": _digest(json.dumps(dict(settings), sort_keys=True).encode()),
        "code": _digest(*((Path(__file__).parent / name).read_bytes() for name in (*CODE, *code))),
    }


def weights_fingerprint(lm: LanguageModel) -> str:
    """Return a hash of a model: of its own weights and, with an adapter, of the backbone's name."""
    digest = hashlib.sha256(lm.base.encode() if lm.adapter else b"")
    for name, tensor in sorted(lm.weights().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def load_or_make(
    folder: Path, fingerprints: Mapping[str, str], make: Callable[[], Cached], kind: type[Cached]
) -> Cached:
    """Load a dataclass of tensors from a folder. If the folder has none, make it and write it there.

    Args:
        fingerprints: fingerprints of the current inputs, from `fingerprints_of`.

    Raises:
        UserError: the folder was made from other data, another reference, other settings or older code, or is damaged.
    """
    recover(folder)
    if not (folder / CARD).is_file():
        cache = make()

        def fill(fresh: Path) -> None:
            save_file({name: tensor.contiguous() for name, tensor in vars(cache).items()}, fresh / TENSORS)
            (fresh / CARD).write_text(json.dumps(dict(fingerprints), indent=1), encoding="utf-8")

        write_folder(folder, fill)
        return cache
    require_undamaged(folder)
    try:
        before = read_json(folder / CARD)
        tensors = load_file(folder / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{folder} cannot be read ({error}); remove it to have it made again") from error
    if differing := [name for name in fingerprints if before.get(name) != fingerprints[name]]:
        named = " and ".join(filter(None, [", ".join(differing[:-1]), differing[-1]]))
        raise UserError(f"{folder} was made with other {named}; remove it to have it made again")
    return kind(**tensors)

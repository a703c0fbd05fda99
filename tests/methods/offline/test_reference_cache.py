"""What the reference thinks of the data: computed once, and refused by name when anything that it came from differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.digests import DIGESTS
from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline import reference_cache
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import (
    CARD,
    TENSORS,
    Outcomes,
    cached_reference,
    fingerprints_of,
    reference_logprobs,
)
from tests.methods.offline.texts import Text, texts

Tiny = Callable[..., Any]
CONFIG = OfflineConfig(value_epochs=2, value_batch=4)
SAMPLES = [
    Text(colour, f"A {colour} room,", f" go {word}", reward)
    for colour in ("red", "blue", "green", "black")
    for word, reward in (("left", 1.0), ("right", 0.25))
]


def data_of(lm: Any, samples: list[Text] = SAMPLES) -> Dataset:
    return texts(lm, samples)


def cached(folder: Path, data: Dataset, **more: Any) -> Any:
    return cached_reference(folder, data, more.pop("config", CONFIG), 0, lambda metrics: None, **more)


def test_it_holds_log_probabilities_values_and_advantages(tiny: Tiny, tmp_path: Path) -> None:
    data = data_of(tiny())
    found = cached(tmp_path / "kept", data)
    torch.testing.assert_close(found.ref_logp_NT, reference_logprobs(data))
    torch.testing.assert_close(found.advantages_N, data.rewards_N - found.values_N)
    assert torch.equal(found.weights_N, found.advantages_N.clamp_min(0)) and float(found.values_N.max()) <= 1.0
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {CARD, TENSORS, DIGESTS}


def test_the_second_time_nothing_is_computed(tiny: Tiny, tmp_path: Path) -> None:
    data = data_of(tiny())
    first = cached(tmp_path / "kept", data)
    before = data.completions.lm.counters.copy()
    second = cached(tmp_path / "kept", data)
    assert data.completions.lm.counters.since(before).passes == 0
    assert all(torch.equal(tensor, getattr(second, name)) for name, tensor in vars(first).items())


def nudged(lm: Any) -> Any:
    with torch.no_grad():
        next(iter(lm.parameters())).view(-1)[0] += 1e-3
    return lm


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"samples": [*SAMPLES[:-1], SAMPLES[-1]._replace(reward=0.3)]}, "other data;"),
        ({"samples": [*SAMPLES[:-1], SAMPLES[-1]._replace(completion=" go on")]}, "other data;"),
        ({"samples": SAMPLES[::-1]}, "other data;"),
        ({"lm": nudged}, "other reference;"),
        ({"config": replace(CONFIG, value_lr=0.1)}, "other settings;"),
        ({"config": replace(CONFIG, value_output="linear")}, "other settings;"),
        ({"outcomes": True}, "other settings;"),
        ({"code": True}, "other code;"),
        ({"code": True, "samples": SAMPLES[:-1], "lm": nudged}, "other data, reference and code;"),
    ],
)
def test_a_stale_one_is_refused_by_what_differs(
    tiny: Tiny, tmp_path: Path, change: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    cached(folder, data_of(tiny()))
    lm = change.get("lm", lambda model: model)(tiny())
    data = data_of(lm, change.get("samples", SAMPLES))
    if "code" in change:
        monkeypatch.setattr(reference_cache, "CODE", reference_cache.CODE[:-1])
    given = {"config": change["config"]} if "config" in change else {}
    if "outcomes" in change:
        given["outcomes"] = lambda: Outcomes(data.completions.prompts, data.rewards_N, data.units)
    with pytest.raises(UserError, match=named) as caught:
        cached(folder, data, **given)
    assert str(folder) in str(caught.value)


def test_settings_that_do_not_matter_may_differ(tiny: Tiny, tmp_path: Path) -> None:
    data = data_of(tiny())
    first = cached(tmp_path / "kept", data)
    other = replace(CONFIG, algorithm="a_lol_kl", steps=7, lr=0.1, sampling="none", clip=0.5)
    assert torch.equal(cached(tmp_path / "kept", data, config=other).values_N, first.values_N)


def test_the_value_is_fitted_to_what_the_reference_earns(tiny: Tiny, tmp_path: Path) -> None:
    """Played outcomes of 0 give low values, whatever was logged."""
    data = data_of(tiny())
    config = replace(CONFIG, value_epochs=20, value_output="linear", value_lr=1e-2)
    nothing = Outcomes(data.completions.prompts, torch.zeros(len(data)), data.units)
    low = cached(tmp_path / "low", data, config=config, outcomes=lambda: nothing)
    logged = cached(tmp_path / "logged", data, config=config)
    assert float(low.values_N.abs().max()) < 0.2 < float(logged.values_N.mean())


def test_without_need_no_value_is_fitted(tiny: Tiny, tmp_path: Path) -> None:
    data = data_of(tiny())
    found = cached(tmp_path / "kept", data, needs_value=False)
    assert not found.values_N.any() and torch.equal(found.advantages_N, data.rewards_N)
    with pytest.raises(UserError, match="other settings;"):
        cached(tmp_path / "kept", data)


def test_a_damaged_one_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    data = data_of(tiny())
    cached(tmp_path / "kept", data)
    (tmp_path / "kept" / CARD).write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"reference_cache.json has changed since it was written; remove .*kept, then"):
        cached(tmp_path / "kept", data)


def test_adapters_have_a_fingerprint_of_their_own(tiny: Tiny) -> None:
    one, other = (fingerprints_of(data_of(tiny(lora_rank=2, lora_alpha=4)), {}) for _ in range(2))
    assert one == other and json.dumps(one)
    assert one["reference"] != fingerprints_of(data_of(tiny()), {})["reference"]

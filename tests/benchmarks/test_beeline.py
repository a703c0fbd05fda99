"""The scores of a run's arms in BeelineBench's search."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.beeline import Settings, main, paired
from reflectrl.core.types import UserError


def test_a_ratio_on_the_same_trials_is_as_certain_as_the_trials_agree() -> None:
    rng = np.random.default_rng(0)
    first = {"tiles": list(rng.uniform(0.1, 1, 30)), "countdown": list(rng.uniform(0.1, 1, 30))}
    assert paired(first, first) == (1.0, 1.0, 1.0)
    halved = {domain: [score / 2 for score in scores] for domain, scores in first.items()}
    assert paired(halved, first) == pytest.approx((0.5, 0.5, 0.5))
    noisy = {domain: [score * rng.uniform(0.5, 1.5) for score in scores] for domain, scores in first.items()}
    ratio, low, high = paired(noisy, first)
    assert low < ratio < high and high - low > 0.05


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (Settings((Path("runs/none"),), first=1), "official trials"),
        (Settings((Path("runs/none"),)), "not a run folder"),
        (Settings(()), "no run has an arm"),
    ],
)
def test_bad_settings_are_refused_with_a_reason(settings: Settings, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        main(settings)

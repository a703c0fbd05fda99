"""Card of an exported agent, `agent.json`: its training environment, its settings of play, and its results.

Imports nothing slow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from reflectrl.core.calibration import UNCHANGED, Calibration
from reflectrl.core.config import from_dict
from reflectrl.core.config.rules import Count, Natural, Positive, Range
from reflectrl.core.json_lines import read_json
from reflectrl.core.plugins import reason
from reflectrl.core.types import UserError
from reflectrl.runs.state import CARD

SCHEMA = 1
Slope = Annotated[float, Range(least=0, most=1e6)]


@dataclass(frozen=True)
class PlaySettings:
    """Settings of the prompts and of scoring, as they were in training."""

    scoring: Literal["enumeration", "sum", "token", "word", "trie", "options"] = "enumeration"
    reflection_tokens: Count = 100
    shuffle_labels: bool = False
    context: Natural = 512
    """Longest sequence in tokens."""
    calibration: Positive = 1.0
    """Temperature of the reported probabilities."""
    beta_a: Slope = UNCHANGED[0]
    beta_b: Slope = UNCHANGED[1]
    beta_c: Annotated[float, Range(least=-1e6, most=1e6)] = UNCHANGED[2]
    """Beta calibration of the choice's probability (a, b and c of `core.calibration.Calibration`)."""
    reflection: Literal["fresh", "carried"] = "fresh"
    """Memory of the reflector: "carried" if it reads its previous reflection."""

    def to_calibration(self) -> Calibration:
        """Return the calibration of the reported probabilities: temperature and beta calibration."""
        return Calibration(self.calibration, (self.beta_a, self.beta_b, self.beta_c))


@dataclass(frozen=True)
class Card:
    """Description and provenance of a trained agent."""

    recipe: str = ""
    arm: str = ""
    seed: int = 0
    commit: str = ""
    """Version of reflectrl that made the results."""
    environment: str = ""
    """Name of the environment in which it was trained."""
    play: PlaySettings = field(default_factory=PlaySettings)
    env: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the environment (`TextEnv.card_settings`)."""
    figures: tuple[Mapping[str, Any], ...] = ()
    """Rows of `results.json` about the arm: split, stage, sampling, success with its interval ..."""

    @property
    def name(self) -> str:
        """Recipe, arm and seed in a few words."""
        return f"{self.recipe or 'unnamed'} ({self.arm}, seed {self.seed})" if self.arm else self.recipe or "unnamed"


C = TypeVar("C", bound=Card)


def write_card(folder: Path, card: Card) -> None:
    """Write `agent.json` into an agent's folder."""
    (folder / CARD).write_text(json.dumps({"schema": SCHEMA, **asdict(card)}, indent=1) + "\n", encoding="utf-8")


def read_card(folder: Path, kind: type[C] = Card) -> C:  # type: ignore[assignment]
    """Read `agent.json`.

    Args:
        kind: class of the card. A subclass may have further fields about its environment.

    Raises:
        UserError: the folder holds no agent, its card is damaged, or a newer reflectrl wrote it.
    """
    path = folder / CARD
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise UserError(
            f"{folder} is not an agent's folder (it has no {CARD}); `reflectrl export-agent` makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise UserError(f"{path} is not of schema {SCHEMA}, which this version of reflectrl reads")
    return from_dict(kind, data, str(path))

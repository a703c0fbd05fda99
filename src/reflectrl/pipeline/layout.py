"""Where things lie in a run folder, and what makes one of them complete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectrl.learn.checkpoint import recover
from reflectrl.learn.reference_cache import CARD as REFERENCE_CACHE
from reflectrl.models.lm import CARD
from reflectrl.plugins import one_line
from reflectrl.types import UserError


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run. A checkpoint folder appears only when it is complete, so its existence says so."""

    path: Path

    def teach(self, seed: int, split: str) -> Path:
        return self.path / "episodes" / f"teach-seed{seed}-{split}.jsonl"

    def evaluation(self, arm: str, seed: int, split: str, stage: str, sampling: str) -> Path:
        return self.path / "episodes" / f"eval-{arm}-seed{seed}-{split}-{stage}-{sampling}.jsonl"

    def log(self, seed: int) -> Path:
        """The log of episodes from which offline arms learn."""
        return self.path / "episodes" / f"offline-seed{seed}.jsonl"

    def checkpoint(self, seed: int, part: str) -> Path:
        return self.path / "checkpoints" / f"seed{seed}" / part

    def learner(self, seed: int, part: str) -> Path:
        """State of a training that is under way."""
        return self.path / "checkpoints" / f"seed{seed}" / f"{part}.learner"

    def part_metrics(self, seed: int, part: str) -> Path:
        return self.path / "metrics" / f"seed{seed}-{part}.jsonl"

    def trained(self, seed: int, part: str) -> bool:
        recover(self.checkpoint(seed, part))
        return (self.checkpoint(seed, part) / CARD).is_file()

    def has_reference_cache(self, seed: int) -> bool:
        """Whether it is known what the reference thinks of the log."""
        folder = self.checkpoint(seed, "offline-value")
        recover(folder)
        return (folder / REFERENCE_CACHE).is_file()

    @property
    def timings(self) -> Path:
        """Wall-clock times: kept apart from the results, which are the same for two runs of one recipe."""
        return self.path / "timings.jsonl"


def unusable(folder: Path, error: OSError) -> UserError:
    """What the system says about a file of a run; libraries raise its errors with nothing but a message."""
    about = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else one_line(error)
    return UserError(f"run folder {folder}: {about}")

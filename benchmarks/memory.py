"""Memory of two players with LoRA on one backbone, and of an update with a small and a large vocabulary.

    python -m benchmarks.memory

The update is taken from `benchmarks.update`: 16 steps of taxi with LoRA on a 4-layer model, each in a fresh process.
The memory before the update (the weights) is not counted. If every weight is trained, the gradient of the embedding
table is as large as the table in any case, so this case is shown separately.
"""

from __future__ import annotations

from typing import Any

from reflectrl.core.types import Step
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import second_player

from .measure import peak_memory
from .plain_learning import update_gradients
from .settings import Settings, main, note
from .update import consecutive, engine_gradients
from .workloads import bench_model, workload

VOCABULARIES = (1000, 50_257)
STEPS = 16


def prepared(size: str, vocab: int, rank: int) -> tuple[LanguageModel, list[Step]]:
    """Make a model and steps for an update."""
    lm = bench_model(size, workload("taxi"), vocab, adapter="policy" if rank else None, lora_rank=rank)
    return lm, consecutive("taxi", STEPS)


def engine_update(given: tuple[LanguageModel, list[Step]]) -> None:
    """Compute the packed update."""
    engine_gradients(*given)


def plain_update(given: tuple[LanguageModel, list[Step]]) -> None:
    """Compute the update step by step, with the logits of all positions."""
    update_gradients(*given, minibatch=STEPS)


def players(size: str) -> dict[str, Any]:
    """Measure weights in MiB: of a backbone, and of a pair of adapters on it."""
    alone = bench_model(size, workload("taxi"))
    first = bench_model(size, workload("taxi"), adapter="policy", lora_rank=8)
    second_player(first, "reflector")
    first_mib, second_mib = (sum(p.nbytes for p in lm.model.parameters()) / 2**20 for lm in (alone, first))
    return {
        "size": size,
        "what": "weights of one backbone; of two LoRA players on it",
        "first MiB": first_mib,
        "second MiB": second_mib,
        "ratio": second_mib / first_mib,
    }


def updates(size: str, what: str, function: Any, rank: int) -> dict[str, Any]:
    """Measure the peaks with the small and the large vocabulary."""
    small, large = (peak_memory(function, size, vocab, rank, prepare=prepared) for vocab in VOCABULARIES)
    ratio = large / small if small and large else None
    mib = [None if peak is None else peak / 2**20 for peak in (small, large)]
    return {"size": size, "what": what, "first MiB": mib[0], "second MiB": mib[1], "ratio": ratio}


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return the rows of both measurements for each size."""
    table_rows = []
    for size in settings.sizes:
        table_rows.append(note(players(size)))
        for rank, name in ((8, "LoRA"), (0, "all weights")):
            vocabularies = f"{VOCABULARIES[0]} and {VOCABULARIES[1]} words, {name}"
            table_rows.append(note(updates(size, f"update, engine: {vocabularies}", engine_update, rank)))
            table_rows.append(note(updates(size, f"update, plain: {vocabularies}", plain_update, rank)))
    return table_rows


if __name__ == "__main__":
    main(rows, __doc__)

"""Speed-up from each part of the engine: the same work with one part off, interleaved with runs that have all parts on.

    python -m benchmarks.engine_parts --sizes 4x256 --batches 1 16 --repetitions 5 --threads 1

Rows are parts. Columns are cells: play, play of equal episodes, RL update and SFT, by workload and batch. Each number
is the time without the part divided by the time with it, so a part with 1.10 saves almost a tenth. The last line
compares the loader of small models with the library's, in separate processes.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from reflectrl.core import prompts
from reflectrl.models import forward, generation, machine, packed
from reflectrl.models.forward import hidden_states

from .measure import interleaved, timed
from .play import Cell
from .settings import Settings, main, note
from .sft import engine_sft, examples_of
from .update import clean, consecutive, engine_gradients
from .workloads import bench_model, workload

SMALL = 128 * 2**10
"""Default thresholds of glibc, in bytes."""


def whole_last_layer(*given: Any) -> Any:
    """Compute hidden states of all tokens, then select the tokens that are asked for."""
    core, ids_N, positions_N, attend, wanted, walk = given
    hidden_ND = hidden_states(core, ids_N, positions_N, attend, None, walk)
    return hidden_ND if wanted is None else hidden_ND[wanted]


def by_the_library(*given: Any) -> Any:
    """Run the library's layers with our attention."""
    return hidden_states(*given[:5], None)


@contextlib.contextmanager
def allocator_as_it_is() -> Iterator[None]:
    """Let glibc return freed memory to the system, which is its default."""
    if (set_option := machine._of_glibc("mallopt")) is not None:
        set_option(machine.MMAP_THRESHOLD, SMALL)
        set_option(machine.TRIM_THRESHOLD, SMALL)
    try:
        yield
    finally:
        machine.keep_memory()


def whole_text(tokenizer: Any, text: str) -> list[int]:
    """Encode a whole history at once, without the tokens of earlier steps."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


PARTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "speculative decoding": lambda: mock.patch.object(generation, "LONGEST_DRAFT", 0),
    "last-layer cut": lambda: mock.patch.object(packed, "hidden_states", whole_last_layer),
    "walks through known families": lambda: mock.patch.object(packed, "hidden_states", by_the_library),
    "packing": lambda: mock.patch.object(packed, "pack", packed.apart),
    "incremental tokens": lambda: mock.patch.object(prompts, "encode_lines", whole_text),
    "turned products": lambda: mock.patch.object(forward, "turned_rows", lambda: range(0)),
    "freed memory kept": allocator_as_it_is,
}
"""Context managers that switch each part off."""


def play(size: str, name: str, batch: int, settings: Settings, equal: bool) -> Callable[[], float]:
    """Prepare steps of play, to be timed in seconds. The policy caches almost nothing, but shares prefixes."""
    cell = Cell(size, name, batch, True, settings.shares, device=settings.device, dtype=settings.dtype)
    if equal:
        cell.episodes = cell.episodes[:1] * batch
    cell.engine.policy.memory = 1
    return partial(cell.engine_ticks, timed)


def update(size: str, name: str, batch: int, settings: Settings) -> Callable[[], float]:
    """Prepare the gradient of some steps, to be timed in seconds."""
    lm, steps = (
        bench_model(size, workload(name), device=settings.device, dtype=settings.dtype),
        consecutive(name, batch),
    )
    return partial(timed, partial(clean, lm, partial(engine_gradients, lm, steps)))


def sft(size: str, name: str, batch: int, settings: Settings) -> Callable[[], float]:
    """Prepare a short training, to be timed in seconds."""
    lm = bench_model(size, workload(name), mixed_precision="off", device=settings.device)
    return partial(engine_sft, lm, examples_of(lm, name, 8 * batch), batch, 8)


def without(part: str, work: Callable[[], float]) -> float:
    """Return the seconds of some work with a part switched off."""
    with PARTS[part]():
        return work()


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per part."""
    rows_by_part: dict[str, dict[str, Any]] = {part: {"part": part} for part in PARTS}
    for size, name, batch in settings.cells():
        kinds = {
            "play": partial(play, equal=False),
            **({"play, equal": partial(play, equal=True)} if batch > 1 else {}),
            "update": update,
            "sft": sft,
        }
        for kind, make in kinds.items():
            work = make(size, name, batch, settings)
            runs = {"on": work} | {part: partial(without, part, work) for part in PARTS}
            seconds = {key: statistics.median(each) for key, each in interleaved(runs, settings.repetitions).items()}
            cell = f"{kind}, {size}, {name}, {batch}"
            note({"cell": cell} | {part: seconds[part] / seconds["on"] for part in PARTS})
            for part in PARTS:
                rows_by_part[part][cell] = seconds[part] / seconds["on"]
    return [*rows_by_part.values(), loader(settings)]


LOADERS = {
    "on": "from pathlib import Path; from reflectrl.models.light import load_light; assert load_light(Path({!r}), 256)",
    "off": "from reflectrl.core.config import ModelConfig; from reflectrl.models.load import load_model;"
    " load_model({!r}, ModelConfig(context=256))",
}


def loader(settings: Settings) -> dict[str, Any]:
    """Return the row of the loader of small models: start-up of a process with and without it."""
    with tempfile.TemporaryDirectory() as folder:
        lm = bench_model("4x256", workload("taxi"), family="llama")
        lm.model.save_pretrained(Path(folder))
        lm.tokenizer.save_pretrained(folder)

        def start(program: str) -> None:
            subprocess.run([sys.executable, "-c", program.format(folder)], check=True, capture_output=True)

        runs = {key: partial(timed, partial(start, program)) for key, program in LOADERS.items()}
        seconds = {key: statistics.median(each) for key, each in interleaved(runs, settings.repetitions).items()}
    return {"part": "loader of small models", "start-up": seconds["off"] / seconds["on"]}


if __name__ == "__main__":
    main(rows, __doc__)

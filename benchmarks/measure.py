"""Instruments: the GEMM rate, counted FLOPs, interleaved timing, peak memory, and tables of results."""

from __future__ import annotations

import gc
import json
import re
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from reflectrl.models.machine import release_memory

# ---- speed ---------------------------------------------------------------------------------------------------------


def gemm_rate(dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seconds: float = 0.2) -> float:
    """Return the FLOP/s of a large square matrix product: the median over `seconds`, and over three products at least.

    It runs with torch's current number of threads, so it is the ceiling for other work with as many.
    """
    size = 1024 if torch.device(device).type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = a @ b
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < 3:
        taken.append(timed(lambda: torch.mm(a, b, out=out)))
    return 2 * size**3 / statistics.median(taken)


def timed(function: Callable[[], Any]) -> float:
    """Time a call in seconds, a GPU's work included. If the call returns a float, this is taken as its time."""
    _wait_for_gpu()
    start = time.perf_counter()
    own = function()
    _wait_for_gpu()
    return own if isinstance(own, float) else time.perf_counter() - start


def _uses_gpu() -> bool:
    """Return whether this process has computed on a GPU. (Asking an unused GPU would initialise it.)"""
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _wait_for_gpu() -> None:
    if _uses_gpu():
        torch.cuda.synchronize()


def host_waits(function: Callable[[], Any]) -> int:
    """Count how often the host waits for the GPU's answer during one call; 0 where no GPU computes.

    Each wait leaves the GPU idle until the host has queued the next work. torch reports them as warnings.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if _uses_gpu():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            if _uses_gpu():
                torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def interleaved(
    functions: Mapping[str, Callable[[], float | None]], repetitions: int, warm_up: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of each call of each function.

    The order alternates (AB BA AB ...), so that neither a slowing machine nor the place in the order favours a
    function. Garbage is collected before each call.

    Args:
        functions: by name; if a function returns a float, this is taken as its time in seconds.
        warm_up: call each function once before, unmeasured.
    """
    names = list(functions)
    if warm_up:
        for name in names:
            functions[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions):
        for name in names if repetition % 2 == 0 else reversed(names):
            gc.collect()
            taken[name].append(timed(functions[name]))
    return taken


# ---- floating-point operations -------------------------------------------------------------------------------------


def _visible(query: Tensor, key: Tensor, causal: bool, mask: Tensor | None) -> float:
    """Return the share of query-key pairs that the kernel computes. It skips what causality hides, but not a mask."""
    if not causal or mask is not None:
        return 1.0
    rows, columns = query.shape[-2], key.shape[-2]
    return sum(min(row + 1, columns) for row in range(rows)) / (rows * columns)


def _attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    **_: Any,
) -> int:
    """Count the two products q·k and p·v."""
    share = _visible(query, key, is_causal, attn_mask)
    return round(share * sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    **_: Any,
) -> int:
    """Count the five products: q·k again, and the gradients of p, v, q and k."""
    share = _visible(query, key, is_causal, attn_mask)
    return round(share * sdpa_backward_flop_count(grad_out.shape, query.shape, key.shape, value.shape))


def _on_gpu(*tensors: Tensor, products: int, skip: int = 0) -> int:
    """Count products of queries with keys and of scores with values. Several query heads may share keys.

    Args:
        products: number of products in the kernel.
        skip: number of tensors before the queries.
    """
    query, key = tensors[skip : skip + 2]
    rows, heads, queries, width = query.shape
    return 2 * products * rows * heads * queries * key.shape[-2] * width


def _gpu_forward(*tensors: Any, **_: Any) -> int:
    return _on_gpu(*tensors, products=2)


def _gpu_backward(*tensors: Any, **_: Any) -> int:
    return _on_gpu(*tensors, products=5, skip=1)


def _matrix_vector(matrix: Tensor, vector: Tensor, **_: Any) -> int:
    return 2 * matrix.numel()


def _raw(formula: Callable[..., int]) -> Callable[..., int]:
    """Mark a formula that reads its operator's own arguments. Other formulas get shapes instead of tensors."""
    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


aten = torch.ops.aten
FORMULAS = {
    aten._scaled_dot_product_flash_attention_for_cpu: _raw(_attention_forward),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _raw(_attention_backward),
    aten.mv: _raw(_matrix_vector),
    **{
        getattr(aten, f"_scaled_dot_product_{kernel}_attention{way}"): _raw(formula)
        for kernel in ("flash", "efficient", "cudnn")
        for way, formula in (("", _gpu_forward), ("_backward", _gpu_backward))
    },
}
"""Formulas that torch's counter lacks: fused attention on CPUs (it counts 0), matrix-vector products, and attention on
GPUs with shared keys (it refuses). On GPUs, causal attention counts in full.
"""


def count_flops(function: Callable[[], Any]) -> int:
    """Count the FLOPs of matrix products and attention in one call, forwards and backwards.

    A multiply-add is 2. Element-wise work (normalisation, activations, softmax) is not counted. The count is the same
    with gradients, under `no_grad`, under `inference_mode` and under autocast. Causal attention without a mask counts
    the visible half only, since the kernel skips the other half; attention under a mask counts in full.

    Only the operations of this process in this thread are counted.
    """
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        function()
    return int(counter.get_total_flops())


def counted(function: Callable[[], Any], clock: Callable[[Callable[[], Any]], float] = timed) -> tuple[float, int]:
    """Return the seconds and FLOPs of the same call, for functions that take too long to run twice.

    Counting costs some microseconds per operator, which is negligible beside seconds of matrix products.
    """
    taken: list[float] = []
    flops = count_flops(lambda: taken.append(clock(function)))
    return taken[0], flops


# ---- memory --------------------------------------------------------------------------------------------------------

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MODULES = ("peft", "transformers.models.llama.modeling_llama", "transformers.models.gpt2.modeling_gpt2")
"""Modules that programs import sooner or later, and whose memory is not part of what is measured."""


def clean_processes() -> Any:
    """Return a context whose processes are forks of a server, which has imported modules and computed nothing.

    A process that starts anew would import for seconds, and a fork of this one would reuse memory that is free here.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.measure", *MODULES])
    return context


def peak_memory(function: Callable[..., Any], *args: Any, prepare: Callable[..., Any] | None = None) -> int | None:
    """Return by how many bytes a clean process grows, at its peak, from right before `function` is called.

    With `prepare`, `prepare(*args)` runs first, unmeasured, and `function` receives its result (a model, say). Both
    must be importable by name. The process has as many threads as torch has here.

    The kernel's own high-water mark (VmHWM) is reset to the present size and read afterwards. A sampling thread would
    miss short peaks. `ru_maxrss` cannot be reset, and Linux passes a process's mark on to the programs that it starts.

    Returns:
        The bytes; None on systems without such a mark (other than Linux), where nothing is measured.
    """
    if not CLEAR.exists():
        return None
    with ProcessPoolExecutor(1, mp_context=clean_processes()) as process:
        return process.submit(_growth, function, prepare, args, torch.get_num_threads()).result()


def _growth(function: Callable[..., Any], prepare: Callable[..., Any] | None, args: Sequence[Any], threads: int) -> int:
    torch.set_num_threads(threads)
    arguments = args if prepare is None else (prepare(*args),)
    gc.collect()
    CLEAR.write_text("5", encoding="ascii")  # "5": set the mark back to the present size
    before = _status_bytes("VmRSS")
    function(*arguments)
    return max(0, _status_bytes("VmHWM") - before)


def growth(function: Callable[[], Any]) -> int:
    """Return by how many bytes this process grows, at its peak, while a function runs; 0 if the system does not tell.

    Once the process computes on a GPU, this is the memory of the GPU. Memory freed by earlier calls is first returned
    to the system; otherwise it would be reused without being counted.
    """
    gc.collect()
    if _uses_gpu():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    if not CLEAR.exists():
        function()
        return 0
    release_memory()
    CLEAR.write_text("5", encoding="ascii")
    before = _status_bytes("VmRSS")
    function()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert match is not None, f"{STATUS} has no {name}"
    return int(match[1]) * 1024


# ---- what is printed -----------------------------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Format rows as aligned text, one line each: names to the left, numbers to the right, "-" for missing cells."""
    drawn = Table(box=None, pad_edge=False, header_style="")
    for name in columns:
        numbers = any(isinstance(row.get(name), (int, float)) for row in rows)
        drawn.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*(_cell(row.get(name)) for name in columns))
    width = (
        80 + sum(len(name) for name in columns) + 20 * len(columns) + max((len(str(row)) for row in rows), default=0)
    )
    text = StringIO()
    Console(file=text, width=width, markup=False, highlight=False, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _cell(value: Any) -> str:
    """Format a number with three significant digits; large ones without decimals."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def report(rows: Sequence[Mapping[str, Any]], as_json: bool) -> str:
    """Format the rows as a JSON list or as a table. Columns are the rows' keys in order of occurrence."""
    if as_json:
        return json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n"
    return table(rows, list(dict.fromkeys(key for row in rows for key in row)))

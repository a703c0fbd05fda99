"""Time attention over many small blocks on a CPU: one call per block, or padded batches, in turns, in one process.

    python -m benchmarks.blocks

Each cell is a pass of learning, forward and backward, through the attention of all layers of a model. `size` is what
`reflectrl.models.packed.SMALL` limits: (new tokens + visible tokens / 4) · width, the mean over blocks. Times are
processor time, so the other core may be busy.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from reflectrl.models.attention import Attend, BlockAttention
from reflectrl.models.batched import BatchedAttention
from reflectrl.models.packed import SMALL, are_small, mean_size
from reflectrl.models.sharing import Block, pack

MODELS = {64: (4, 2), 256: (4, 4), 768: (12, 12)}
"""Width of a model → its heads and layers."""


def blocks_of(count: int, before: int, new: int) -> list[Block]:
    """Return `count` blocks of about `new` tokens (0.7 to 1.3 times as many) after a prefix that they share."""
    rng = random.Random(1)
    prompts = []
    for _ in range(count):
        own = [rng.randrange(500, 9000) for _ in range(int(new * rng.uniform(0.7, 1.3)))]
        prompts.append((*range(before), *own))
    return pack(prompts).blocks


def seconds(blocks: Sequence[Block], width: int, heads: int, layers: int, repetitions: int) -> tuple[float, float]:
    """Return the median processor seconds of both ways: a call per block, and padded batches."""
    tokens = sum(len(block.ids) for block in blocks)
    shape = (tokens, heads, width // heads)
    query, key, value = (torch.randn(shape, requires_grad=True) for _ in range(3))
    gradient, device = torch.randn(tokens, width), torch.device("cpu")

    def learn(attend: Attend) -> None:
        for layer in range(layers):
            attend(layer, query, key, value).backward(gradient)

    def spent(make: Callable[[], Attend]) -> float:
        began = time.process_time()
        learn(make())
        return time.process_time() - began

    factories = partial(BlockAttention, blocks), partial(BatchedAttention, blocks, None, layers, device)
    pairs = [[spent(factory) for factory in factories] for _ in range(1 + repetitions)][1:]
    alone, batched = (statistics.median(column) for column in zip(*pairs, strict=True))
    return alone, batched


def main() -> None:
    """Print a line per cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 256], choices=MODELS, help="widths of models")
    parser.add_argument("--counts", nargs="+", type=int, default=[8, 16, 64], help="numbers of blocks")
    parser.add_argument("--before", nargs="+", type=int, default=[0, 40, 160], help="tokens that all blocks share")
    parser.add_argument("--new", nargs="+", type=int, default=[6, 12, 25, 50, 100], help="tokens of a block")
    parser.add_argument("--repetitions", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| width | blocks | before | new | size | one by one (ms) | batched (ms) | batched / one by one | chosen |")
    print("|---|---|---|---|---|---|---|---|---|")
    for width in args.widths:
        heads, layers = MODELS[width]
        for count in args.counts:
            for before in args.before:
                for new in args.new:
                    blocks = blocks_of(count, before, new)
                    alone, batched = seconds(blocks, width, heads, layers, args.repetitions)
                    size = mean_size(blocks, width)
                    choice = "batched" if are_small(blocks, width) else "one by one"
                    print(
                        f"| {width} | {len(blocks)} | {before} | {new} | {size:,.0f} | {1000 * alone:.1f} | "
                        f"{1000 * batched:.1f} | {batched / alone:.2f} | {choice} |",
                        flush=True,
                    )
    print(f"\nlimit of the size: {SMALL:,}")


if __name__ == "__main__":
    main()

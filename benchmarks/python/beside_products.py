# SPDX-License-Identifier: Apache-2.0
"""64 blocks of 16 KiB to an idle GPU, and to one full of torch's matrix products: ``beside_products.py [COUNT]``.

Milliseconds from the call to the end: by the engine that the library chooses, by either, and in a stream of high
priority.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import numpy
import torch

import pinning

BLOCKS, SIZE = 64, 16 << 10


def main(count: int = 60) -> None:
    matrices = [torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    products = [torch.empty_like(matrices[0]) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    urgent = torch.cuda.Stream(priority=-5)
    pool = numpy.ones(4096 * SIZE, numpy.uint8)
    indices = numpy.random.default_rng(0).permutation(4096)[:BLOCKS]

    def fill(milliseconds: int) -> None:
        for _ in range(milliseconds // 3 + 1):  # of 1.7 ms each, in two streams
            for stream, product in zip(streams, products, strict=True):
                with torch.cuda.stream(stream):
                    torch.matmul(*matrices, out=product)

    with pinning.Queue("cuda:0") as queue, pinning.alloc(BLOCKS * SIZE, device="cuda:0") as there, pinning.lock(pool):
        blocks = partial(pinning.copy_blocks_async, there, range(BLOCKS), pool, indices, SIZE)
        ways: dict[str, Any] = {
            "chosen": partial(blocks, queue=queue),
            "kernel": partial(blocks, queue=queue, engine="kernel"),
            "engines": partial(blocks, queue=queue, engine="copy"),
            "chosen, high priority": partial(blocks, queue=pinning.Queue.adopt(urgent)),
        }
        fill(10)
        torch.cuda.synchronize()
        for full in (False, True):
            for name, do in ways.items():
                do().wait()
                if full:
                    fill(count * 6)
                taken = []
                for _ in range(count):
                    time.sleep(0.0005)
                    begin = time.perf_counter_ns()
                    do().wait()
                    taken.append((time.perf_counter_ns() - begin) / 1e6)
                still = not (streams[0].query() and streams[1].query())
                torch.cuda.synchronize()
                taken.sort()
                where = ("beside products" if still else "beside products that ended") if full else "idle"
                print(f"{where}, {name}: {taken[count // 2]:.3f} ms, p90 {taken[count * 9 // 10]:.3f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Swap blocks of a KV cache between a host pool and a device pool, as inference servers do: thousands of scattered
blocks in one call.

Run it: ``python kv_blocks.py [BLOCKS]``
"""

from __future__ import annotations

import sys
import time

import numpy

import pinning

BLOCK_BYTES = 16 << 10  # of one layer: 16 tokens, 4 heads, 128 numbers of 2 bytes


def main() -> None:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
    draw = numpy.random.default_rng(1)
    host = draw.integers(0, 256, (2 * blocks, BLOCK_BYTES), dtype=numpy.uint8)  # twice as many as are swapped
    with (
        pinning.Queue() as queue,
        pinning.alloc(blocks * BLOCK_BYTES, device=queue.device) as device,
        pinning.lock(host, device=queue.device),
    ):
        # Which block of the host's pool goes to which of the device's: what a scheduler calls a block table.
        host_blocks = draw.permutation(2 * blocks)[:blocks]
        device_blocks = draw.permutation(blocks)

        swap_in = pinning.copy_blocks_async(device, device_blocks, host, host_blocks, BLOCK_BYTES, queue=queue)
        print(f"in:  {swap_in.path}, {swap_in.reason}")
        before = host[host_blocks].copy()
        swap_in.wait()
        host[host_blocks] = 0

        begin = time.perf_counter()
        swap_out = pinning.copy_blocks_async(host, host_blocks, device, device_blocks, BLOCK_BYTES, queue=queue)
        swap_out.wait()
        seconds = time.perf_counter() - begin
        print(f"out: {blocks} blocks of {BLOCK_BYTES >> 10} KiB at {host[host_blocks].nbytes / seconds / 1e9:.1f} GB/s")
        assert (host[host_blocks] == before).all(), "the blocks that came back are not those that went"
    print("every byte came back")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Copies to and from one GPU over its own link, and over all links that are idle; and what a peer's own copies lose.

``links.py [MIB] [REPETITIONS]``: GB/s, the median. Needs two GPUs or more that are joined by NVLink.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time

import numpy

import pinning

MIB = 1 << 20


def rate(size: int, repetitions: int, copy: object) -> float:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        copy()  # type: ignore[operator]
        times.append(time.perf_counter() - begin)
    return size / statistics.median(times) / 1e9


def main() -> None:
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 1024) * MIB
    repetitions = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    locked = pinning.alloc(size, pinning.MemoryKind.HOST, device="cuda:0")
    pageable = numpy.ones(size, numpy.uint8)
    there = pinning.alloc(size, device="cuda:0")
    for links in ("own", "idle"):
        with pinning.Queue("cuda:0", links=links) as queue:  # type: ignore[arg-type]
            for name, host in (("locked", locked), ("pageable", pageable)):
                into = pinning.copy_async(there, host, queue=queue)
                queue.synchronize()
                pinning.copy_async(host, there, queue=queue).wait()
                for way, copy in (("at once", pinning.copy_async), ("waited", pinning.copy)):
                    to = rate(size, repetitions, lambda copy=copy, host=host: copy(there, host, queue=queue).wait())
                    back = rate(size, repetitions, lambda copy=copy, host=host: copy(host, there, queue=queue).wait())
                    print(f"{links:4} {name:8} {way:7}  in {to:6.1f}  out {back:6.1f} GB/s   {into.reason}", flush=True)
    peers_own(size, repetitions, locked, there)


def peers_own(size: int, repetitions: int, locked: pinning.Allocation, there: pinning.Allocation) -> None:
    """The peer's own copies of 256 MiB, alone and while another device's copies may use its link."""
    own = 256 * MIB
    stop = threading.Event()

    def borrow() -> None:
        with pinning.Queue("cuda:0", links="idle") as queue:
            while not stop.is_set():
                pinning.copy(there, locked, queue=queue)

    with (
        pinning.alloc(own, pinning.MemoryKind.HOST, device="cuda:1") as host,
        pinning.alloc(own, device="cuda:1") as elsewhere,
        pinning.Queue("cuda:1") as queue,
    ):
        alone = rate(own, 8 * repetitions, lambda: pinning.copy(elsewhere, host, queue=queue))
        thread = threading.Thread(target=borrow)
        thread.start()
        time.sleep(0.1)
        beside = rate(own, 8 * repetitions, lambda: pinning.copy(elsewhere, host, queue=queue))
        stop.set()
        thread.join()
    print(f"the peer's own copies: alone {alone:.1f}, while it may be borrowed {beside:.1f} GB/s: {beside / alone:.2f}")


if __name__ == "__main__":
    main()

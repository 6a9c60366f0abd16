# SPDX-License-Identifier: Apache-2.0
"""Lock much memory in the background beside the bare driver call: how long it takes, and how long a GPU's work waits.

    background_locking.py [--gib 32] [--unit 2097152] [--stall-ms 3] [--torch-gib 4]

One anonymous mapping, touched before by all processors. Meanwhile another thread sends a tiny fill to the GPU and waits
for it, again and again: its waits are what other work would feel. Each line is JSON; times in seconds, waits in ms.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy

import pinning

GIB = 1 << 30
cuda = ctypes.CDLL("libcuda.so.1")
Context = ctypes.c_void_p


def call(name: str, *arguments: object) -> None:
    """Call the driver; exit with its code if it fails."""
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name}: {code}")


class Probe(threading.Thread):
    """Fills four bytes on the GPU and waits for that, again and again, until it is stopped."""

    def __init__(self, context: Context) -> None:
        super().__init__(daemon=True)
        self._context = context
        self._stopped = threading.Event()
        self._ready = threading.Event()
        self.waits: list[float] = []
        self.start()
        self._ready.wait()

    def run(self) -> None:
        call("cuCtxSetCurrent", self._context)
        stream, there = ctypes.c_void_p(), ctypes.c_uint64()
        call("cuStreamCreate", ctypes.byref(stream), 1)
        call("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(4))
        for _ in range(200):
            self._fill(there, stream)
        self._ready.set()
        while not self._stopped.is_set():
            began = time.perf_counter()
            self._fill(there, stream)
            self.waits.append(time.perf_counter() - began)

    def _fill(self, there: ctypes.c_uint64, stream: ctypes.c_void_p) -> None:
        call("cuMemsetD32Async", there, ctypes.c_uint(1), ctypes.c_size_t(1), stream)
        call("cuStreamSynchronize", stream)

    def stop(self) -> dict[str, float]:
        """Stop; returns statistics of the waits, in milliseconds."""
        self._stopped.set()
        self.join()
        waits = 1e3 * numpy.array(self.waits)
        spread = {f"p{q}": round(float(numpy.percentile(waits, q)), 4) for q in (50, 99)}
        return {"waits": len(waits), **spread, "worst": round(float(waits.max()), 3)}


def touch(ptr: int, size: int) -> None:
    """Write to each page, with all processors."""
    threads = len(os.sched_getaffinity(0))
    step = -(-size // threads // mmap.PAGESIZE) * mmap.PAGESIZE
    with ThreadPoolExecutor(threads) as pool:
        for at in range(0, size, step):
            pool.submit(ctypes.memset, ptr + at, 1, min(step, size - at))


def measured(context: Context, what: str, work: Callable[[], object]) -> float:
    """Do the work beside a probe; prints and returns the seconds."""
    probe = Probe(context)
    began = time.perf_counter()
    said = work()
    took = time.perf_counter() - began
    print(
        json.dumps(
            {"what": what, "s": round(took, 4), "probe": probe.stop(), **(said if isinstance(said, dict) else {})}
        ),
        flush=True,
    )
    return took


def _append(locks: list[pinning.Lock], lock: Callable[[], pinning.Lock]) -> None:
    locks.append(lock())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=32)
    parser.add_argument("--unit", type=int, default=2 << 20)
    parser.add_argument("--stall-ms", type=float, default=3.0)
    parser.add_argument("--torch-gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    size = int(given.gib * GIB)
    call("cuInit", 0)
    context = Context()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = numpy.frombuffer(memory, numpy.uint8)
    ptr = view.ctypes.data
    began = time.perf_counter()
    touch(ptr, size)
    print(json.dumps({"what": "touched", "gib": given.gib, "s": round(time.perf_counter() - began, 3)}), flush=True)
    where = ctypes.c_void_p(ptr)
    measured(context, "nothing", lambda: time.sleep(1))
    pending: list[pinning.PendingLock] = []

    def in_background() -> dict[str, object]:
        began = time.perf_counter()
        pending[:] = [pinning.lock_async(view, device="cuda:0", unit=given.unit, stall_ms=given.stall_ms)]
        pending[0].wait(min(GIB, size))
        first = time.perf_counter() - began
        region = pending[0].wait().region
        assert region is not None
        return {"first GiB": round(first, 4), "border every": region.piece}

    for round_ in range(given.rounds):
        bare = measured(
            context, "cuMemHostRegister", lambda: call("cuMemHostRegister_v2", where, ctypes.c_size_t(size), 3)
        )
        bare_undone = measured(context, "cuMemHostUnregister", lambda: call("cuMemHostUnregister", where))
        ours = measured(context, f"lock_async unit={given.unit} stall_ms={given.stall_ms}", in_background)
        ours_undone = measured(context, "unlock", lambda: pending[0].wait().unlock())
        ratios = {"lock": round(ours / bare, 3), "unlock": round(ours_undone / bare_undone, 3)}
        print(json.dumps({"what": "against the bare call", "round": round_, **ratios}), flush=True)
    part = view[: min(size, 8 * GIB)]
    for piece in (256 << 20, 64 << 20, 16 << 20):
        locks: list[pinning.Lock] = []
        lock = partial(pinning.lock, part, device="cuda:0", piece=piece)
        measured(context, f"8 GiB in pieces of {piece >> 20} MiB", partial(_append, locks, lock))
        measured(context, f"unlock 8 GiB in pieces of {piece >> 20} MiB", locks[0].unlock)
    pending.clear()
    if given.torch_gib:
        try:
            import torch
        except ImportError:
            return
        tensor = torch.from_numpy(view[: int(given.torch_gib * GIB)])
        torch.cuda.init()
        measured(context, f"torch pin_memory of {given.torch_gib} GiB", lambda: tensor.pin_memory() is None)


if __name__ == "__main__":
    main()

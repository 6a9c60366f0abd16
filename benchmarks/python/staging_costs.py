# SPDX-License-Identifier: Apache-2.0
"""What staging costs a program on a CUDA GPU, in fresh processes: ``staging_costs.py [ROW ...] [--rounds N]``.

``first``: milliseconds until a queue and an allocation are there and until the first staged copies are over, in a
process that has the GPU's context already. ``memory``: milliseconds until 64 MiB are pinned, by the driver's own
allocation and by registering memory that threads have brought in. ``processors``: staged copies with 2, 4 and all
processors, beside the driver's own, and the processor time of 1 GiB. ``processes``: 1, 4 and 8 processes that copy at
once. ``waits``: microseconds that a lone small copy, 0.5 ms after the one before, takes to submit and to wait for,
beside the driver's. ``beside``: a small locked copy beside large ones of another stream, by us or by the driver.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
ROWS = "first", "memory", "processors", "processes", "waits", "beside"
SMALL = 51 << 10


class Driver:
    """The driver itself, with the GPU's context open and current in this thread."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        wide = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments]
        code = getattr(self.library, name)(*wide)
        assert code == 0, f"{name} returned {code}"


def milliseconds(do: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    do()
    return (time.perf_counter_ns() - begin) / 1e6


def first(size: int) -> None:
    driver = Driver()
    import numpy

    array, back = numpy.ones(size, numpy.uint8), numpy.ones(size, numpy.uint8)
    imported = milliseconds(lambda: __import__("pinning"))
    import pinning

    made: list[Any] = []
    queue = milliseconds(lambda: made.append(pinning.Queue("cuda:0")))
    allocation = milliseconds(lambda: made.append(pinning.alloc(size, device="cuda:0")))
    there = made[1]
    inward = milliseconds(lambda: pinning.copy(there, array, queue=made[0]))
    again = milliseconds(lambda: pinning.copy(there, array, queue=made[0]))
    outward = milliseconds(lambda: pinning.copy(back, there, queue=made[0]))
    bare = milliseconds(lambda: driver("cuMemcpyHtoD_v2", there.ptr, array.ctypes.data, size))
    assert (back == 1).all()
    figures = imported, queue, allocation, inward, again, outward, bare
    print(" ".join(f"{figure:.2f}" for figure in figures))


def memory(size: int = 64 * MIB) -> None:
    driver = Driver()
    driver("cuMemHostAlloc", ctypes.byref(ctypes.c_void_p()), 4096, 3)
    import mmap
    from concurrent.futures import ThreadPoolExecutor

    libc = ctypes.CDLL(None)
    huge_page, populate_write = 2 * MIB, 23
    threads = max(1, len(os.sched_getaffinity(0)) * 3 // 4)

    def pinned(huge: bool, count: int) -> str:
        """Milliseconds to populate one more mapping by so many threads, to register it and to unregister it."""
        kept = mmap.mmap(-1, size + huge_page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        kept.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        start = -(-ctypes.addressof(ctypes.c_char.from_buffer(kept)) // huge_page) * huge_page

        def bring_in(at: int) -> None:
            code = libc.madvise(ctypes.c_uint64(at), ctypes.c_uint64(huge_page), populate_write)
            assert code == 0, "no MADV_POPULATE_WRITE"

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(time.sleep, [0.001] * count))  # starts all threads
            brought = milliseconds(lambda: list(pool.map(bring_in, range(start, start + size, huge_page))))
        registered = milliseconds(lambda: driver("cuMemHostRegister_v2", start, size, 3))
        unregistered = milliseconds(lambda: driver("cuMemHostUnregister", start))
        return f"{brought:.1f} + {registered:.1f} (given back {unregistered:.1f})"

    ptr = ctypes.c_void_p()
    allocated = milliseconds(lambda: driver("cuMemHostAlloc", ctypes.byref(ptr), size, 3))
    freed = milliseconds(lambda: driver("cuMemFreeHost", ptr))
    parts = [
        f"{name} pages by {count} threads {pinned(huge, count)}"
        for name, huge in (("huge", True), ("small", False))
        for count in (1, threads)
    ]
    print(f"allocated {allocated:.1f} (given back {freed:.1f});", "; ".join(parts))


def rates(size: int, rounds: int = 5) -> None:
    """GB/s to the device and to the host, ours and the driver's, and their processor seconds per GiB."""
    driver = Driver()
    import numpy

    import pinning

    array = numpy.resize(numpy.random.default_rng(0).integers(0, 256, 16 * MIB, dtype=numpy.uint8), size)
    with pinning.Queue("cuda:0") as queue, pinning.alloc(size, device="cuda:0") as there:
        ways: dict[str, Callable[[], object]] = {
            "in": partial(pinning.copy, there, array, queue=queue),
            "driver in": partial(driver, "cuMemcpyHtoD_v2", there.ptr, array.ctypes.data, size),
            "out": partial(pinning.copy, array, there, queue=queue),
            "driver out": partial(driver, "cuMemcpyDtoH_v2", array.ctypes.data, there.ptr, size),
        }
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(rounds + 2):
            for name, do in ways.items():
                time.sleep(0.01)  # until no thread of the copy before spins any more
                begin, used = time.perf_counter(), time.process_time()
                do()
                end = time.perf_counter()
                time.sleep(0.002)  # the spinning of its threads after the copy counts too
                if turn > 1:
                    figures[name].append((size / (end - begin) / 1e9, (time.process_time() - used) * GIB / size))
    print(
        ", ".join(
            f"{name} {median(r for r, _ in rows):.1f} ({median(s for _, s in rows):.2f} s a GiB)"
            for name, rows in figures.items()
        )
    )


def together(start: float, seconds: float) -> None:
    """1 GiB to the GPU, again and again, then back, in step with other processes."""
    import numpy

    import pinning

    array = numpy.ones(GIB, numpy.uint8)
    with pinning.Queue("cuda:0") as queue, pinning.alloc(GIB, device="cuda:0") as there:
        ends = {"in": (there, array), "out": (array, there)}
        for both in ends.values():
            pinning.copy(*both, queue=queue)
        line = []
        for i, both in enumerate(ends.values()):
            begin = start + i * (seconds + 0.5)
            time.sleep(max(0.0, begin - time.time()))
            used, count = time.process_time(), 0
            while time.time() < begin + seconds:
                pinning.copy(*both, queue=queue)
                count += 1
            line += [count * GIB / (time.time() - begin) / 1e9, (time.process_time() - used) / max(count, 1)]
    print(*line)


def percentiles(micros: Sequence[float]) -> str:
    ordered = sorted(micros)
    return f"{ordered[len(ordered) // 2]:.1f} us, p99 {ordered[len(ordered) * 99 // 100]:.1f}"


def waits(count: int = 400) -> None:
    driver = Driver()
    import numpy

    import pinning

    with ExitStack() as stack:
        queue, other = stack.enter_context(pinning.Queue("cuda:0")), stack.enter_context(pinning.Queue("cuda:0"))
        there = stack.enter_context(pinning.alloc(64 * 4096, device="cuda:0"))
        array = numpy.ones(64 * 4096, numpy.uint8)
        stack.enter_context(pinning.lock(array, device="cuda:0"))
        small, part = array[:4096], there.ptr
        stream = ctypes.c_void_p(other.handle)

        def copy() -> Any:
            return pinning.copy_async((part, 4096), small, queue=queue)

        def blocks(count: int) -> Any:
            return pinning.copy_blocks_async(there, range(count), array, range(count), 4096, queue=queue)

        def batch() -> Any:
            items = [(there.ptr + i * 4096, array.ctypes.data + i * 4096) for i in range(16)]
            return pinning.copy_batch_async([d for d, _ in items], [s for _, s in items], [4096] * 16, queue=queue)

        ways: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
            "driver": (
                lambda: driver("cuMemcpyAsync", part, small.ctypes.data, 4096, stream),
                lambda _: driver("cuStreamSynchronize", stream),
            ),
            "copy.wait": (copy, lambda event: event.wait()),
            "queue.synchronize": (copy, lambda _: queue.synchronize()),
            "an earlier copy": (lambda: (copy(), copy())[0], lambda event: event.wait()),
            "batch of 16": (batch, lambda event: event.wait()),
            **{f"blocks, {n}": (partial(blocks, n), lambda event: event.wait()) for n in (1, 16, 64)},
            "queue.record": (lambda: (copy(), queue.record())[1], lambda event: event.wait()),
        }
        for name, (submit, wait) in ways.items():
            submitted, waited = [], []
            for _ in range(count):
                time.sleep(0.0005)
                begin = time.perf_counter_ns()
                what = submit()
                middle = time.perf_counter_ns()
                wait(what)
                end = time.perf_counter_ns()
                submitted.append((middle - begin) / 1e3)
                waited.append((end - middle) / 1e3)
            print(f"{name}: submitted {percentiles(submitted)}; waited {percentiles(waited)}")


def beside(large: int = 200 * 1000 * 1000, depth: int = 4, seconds: float = 1.0) -> None:
    """Small copies while so many large ones are in progress: the latter by us, or by the driver in one call each."""
    driver = Driver()
    import numpy

    import pinning

    stream = ctypes.c_void_p()
    driver("cuStreamCreate", ctypes.byref(stream), 1)
    events = [ctypes.c_void_p() for _ in range(depth)]
    for event in events:
        driver("cuEventCreate", ctypes.byref(event), 2)
    with ExitStack() as stack:
        queues = [stack.enter_context(pinning.Queue("cuda:0")) for _ in range(2)]
        arrays = [numpy.ones(size, numpy.uint8) for size in (large, SMALL)]
        there = [stack.enter_context(pinning.alloc(size, device="cuda:0")) for size in (large, SMALL)]
        for array in arrays:
            stack.enter_context(pinning.lock(array, device="cuda:0"))

        def ours(inward: bool, number: int) -> Callable[[], bool]:
            dst, src = (there[0], arrays[0]) if inward else (arrays[0], there[0])
            return pinning.copy_async(dst, src, queue=queues[0]).done  # type: ignore[no-any-return]

        def bare(inward: bool, number: int) -> Callable[[], bool]:
            host, event = arrays[0].ctypes.data, events[number % depth]
            dst, src = (there[0].ptr, host) if inward else (host, there[0].ptr)
            driver("cuMemcpyAsync", dst, src, large, stream)
            driver("cuEventRecord", event, stream)
            return lambda: driver.library.cuEventQuery(event) == 0

        def turn(submit: Callable[..., Callable[[], bool]], inward: bool, small: bool) -> tuple[float, list[float]]:
            """GB/s of the large ones, and microseconds of small ones beside them."""
            pending: list[Callable[[], bool]] = []
            dst, src = (there[1], arrays[1]) if inward else (arrays[1], there[1])
            micros, number, begin = [], 0, time.perf_counter()
            while pending or time.perf_counter() < begin + seconds:
                pending = [done for done in pending if not done()]
                while len(pending) < depth and time.perf_counter() < begin + seconds:
                    pending.append(submit(inward, number))
                    number += 1
                time.sleep(0.0002)
                if small and len(pending) > 1:
                    before = time.perf_counter_ns()
                    pinning.copy_async(dst, src, queue=queues[1]).wait()
                    micros.append((time.perf_counter_ns() - before) / 1e3)
            return number * large / (time.perf_counter() - begin) / 1e9, micros

        for inward in (True, False):
            for name, submit in (("driver", bare), ("ours", ours), ("driver", bare), ("ours", ours)):
                alone, _ = turn(submit, inward, False)
                rate, micros = turn(submit, inward, True)
                print(
                    f"{'to the device' if inward else 'to the host'}, large ones by {name}: alone {alone:.1f} GB/s; "
                    f"beside small ones {rate:.1f}; {SMALL >> 10} KiB {percentiles(micros)}",
                    flush=True,
                )


def child(*arguments: object, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)


def output(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate()
    assert process.returncode == 0, text
    return text.strip()


def row(name: str, rounds: int) -> None:
    if name == "first":
        names = "import", "queue", "allocation", "first in", "second in", "first out", "driver in"
        for size in (64 * MIB, GIB):
            lines = [output(child("first", size)) for _ in range(rounds)]
            columns = zip(*[map(float, line.split()) for line in lines], strict=True)
            figures = ", ".join(f"{n} {median(c):.1f}" for n, c in zip(names, columns, strict=True))
            print(f"first, {size // MIB} MiB, ms: {figures}")
    elif name == "processors":
        mine = sorted(os.sched_getaffinity(0))
        for count in sorted({n for n in (2, 4, 8, len(mine)) if n <= len(mine)}):
            some = set(mine[:count])
            for size in (64 * MIB, GIB):
                done = output(child("rates", size, preexec_fn=partial(os.sched_setaffinity, 0, some)))
                print(f"{count} processors, {size // MIB} MiB, GB/s: {done}")
    elif name == "processes":
        for count in (1, 4, 8):
            start = time.time() + 6
            every = [child("together", start, 2) for _ in range(count)]
            figures = [list(map(float, output(each).split())) for each in every]
            inward, used_in, outward, used_out = (list(column) for column in zip(*figures, strict=True))
            print(
                f"{count} processes: in {sum(inward):.1f} GB/s ({median(used_in):.2f} s a GiB), "
                f"out {sum(outward):.1f} ({median(used_out):.2f})"
            )
    else:
        print(f"{name}:", output(child(name)).replace("\n", f"\n{name}: "))
    sys.stdout.flush()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        name, *given = sys.argv[2:]
        programs: dict[str, Callable[..., None]] = {
            "first": first,
            "memory": memory,
            "rates": rates,
            "together": together,
            "waits": waits,
            "beside": beside,
        }
        programs[name](*[float(each) if "." in each else int(each) for each in given])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", default=ROWS)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for name in asked.rows:
        row(name, asked.rounds)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What a call costs the thread that makes it, beside the vendor's own: ``submit.py [DEVICE] [--json FILE]``.

Each kind of end of a copy, fills, locks and lookups, pools: nanoseconds a call, the least of many short series, since
what else runs on the machine only adds to them. A copy's own share is what it takes beyond ``cuMemcpyAsync`` from C, of
the same bytes in the same direction, in a stream of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy

import pinning
from pinning.plugin.native import NativeDevice

SIZE = 4096
CALLS = 100  # in one series; their work is waited for between two series
SERIES = 60

BARE = """
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>
typedef int (*copy_t)(uint64_t, uint64_t, size_t, void *);
double copies(uint64_t dst, uint64_t src, size_t size, void *stream, int calls) {
    static copy_t copy;
    if (!copy) copy = (copy_t)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpyAsync");
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < calls; ++i)
        if (copy(dst, src, size, stream)) return -1;
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / calls;
}
"""

Do = Callable[[], object]


class Row(NamedTuple):
    """A call: its kind, its nanoseconds, and those of the same copy from C, or None."""

    series: str
    what: str
    ns: float
    bare: float | None


def least(do: Do, settle: Do, calls: int = CALLS) -> float:
    """Nanoseconds per call, the least of all series."""
    best = float("inf")
    for _ in range(SERIES):
        turns = repeat(None, calls)
        begin = time.perf_counter_ns()
        for _ in turns:
            do()
        best = min(best, (time.perf_counter_ns() - begin) / calls)
        settle()
    return best


def bare_copies(folder: Path) -> Callable[[int, int, int, int], float] | None:
    """A function of (dst, src, size, stream): nanoseconds of one ``cuMemcpyAsync``, in a loop in C."""
    source, library = folder / "bare.c", folder / "bare.so"
    source.write_text(BARE)
    done = subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=False)
    if done.returncode:
        return None
    copies = ctypes.CDLL(str(library)).copies
    copies.restype = ctypes.c_double
    copies.argtypes = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    return lambda dst, src, size, stream: copies(dst, src, size, stream, CALLS)


def host_ends(stack: ExitStack, device: Any) -> Iterator[tuple[str, Any, int]]:
    """Kinds of locked host memory: name, end, address."""
    whole = numpy.zeros(16 * SIZE, numpy.uint8)
    stack.enter_context(pinning.lock(whole, device=device))
    part = whole[SIZE : 2 * SIZE]
    address = int(part.ctypes.data)
    yield "NumPy array", numpy.frombuffer(part, numpy.uint8), address
    yield "NumPy view with an offset", part, address
    yield "NumPy view, 2-D of float64", part.view(numpy.float64).reshape(8, -1), address
    yield "memoryview", memoryview(part), address
    array = bytearray(SIZE)
    lock = stack.enter_context(pinning.lock(array, device=device))
    yield "bytearray", array, lock.ptr
    yield "Lock", lock, lock.ptr
    yield "(address, size)", (address, SIZE), address
    allocation = stack.enter_context(pinning.alloc(SIZE, pinning.MemoryKind.HOST, device=device))
    yield "Allocation of HOST", allocation, allocation.ptr
    if importlib.util.find_spec("torch"):
        import torch

        tensor = torch.from_numpy(part)
        yield "torch CPU tensor", tensor, address


def device_ends(stack: ExitStack, device: Any) -> Iterator[tuple[str, Any, int]]:
    """Kinds of device memory: name, end, address."""
    allocation = stack.enter_context(pinning.alloc(SIZE, device=device))
    yield "Allocation", allocation, allocation.ptr
    yield "(address, size)", (allocation.ptr, SIZE), allocation.ptr
    pooled, _ = pinning.queues.default_queue(device).alloc(SIZE)
    stack.callback(pinning.queues.default_queue(device).free, pooled)
    yield "Allocation of a pool", pooled, pooled.ptr
    if not device.name.startswith("cuda"):
        return
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            tensor = torch.zeros(SIZE, dtype=torch.uint8, device=device.name)
            yield "torch CUDA tensor", tensor, tensor.data_ptr()
            yield "address of a torch tensor, size", (tensor.data_ptr(), SIZE), tensor.data_ptr()
    if importlib.util.find_spec("cupy"):
        import cupy

        array = cupy.zeros(SIZE, cupy.uint8)
        yield "CuPy array", array, array.data.ptr
    if importlib.util.find_spec("numba_cuda") or importlib.util.find_spec("numba"):
        try:
            from numba import cuda

            device_array = cuda.device_array(SIZE, numpy.uint8)
        except Exception as problem:  # numba does not support the driver
            print(f"no numba: {problem}")
            return
        yield "numba device array", device_array, device_array.device_ctypes_pointer.value


def copies(device: Any, bare: Callable[[int, int, int, int], float] | None) -> Iterator[Row]:
    """Every kind of end against an allocation, both ways."""
    with ExitStack() as stack:
        queue = stack.enter_context(pinning.Queue(device))
        other = stack.enter_context(pinning.Queue(device))
        stream = other.handle
        there = stack.enter_context(pinning.alloc(SIZE, device=device))
        locked = numpy.zeros(SIZE, numpy.uint8)
        stack.enter_context(pinning.lock(locked, device=device))

        def plain(dst: int, src: int) -> float | None:
            if bare is None:
                return None
            best = float("inf")
            for _ in range(SERIES):
                best = min(best, bare(dst, src, SIZE, stream))
                other.synchronize()
            return best

        begin = plain(there.ptr, int(locked.ctypes.data)), plain(int(locked.ctypes.data), there.ptr)
        ends = [
            *((f"host: {name}", end, there, begin) for name, end, _ in host_ends(stack, device)),
            *((f"device: {name}", locked, end, begin) for name, end, _ in device_ends(stack, device)),
        ]
        for name, host, on_device, (inward, outward) in ends:
            to_device = partial(pinning.copy_async, on_device, host, None, queue)
            to_host = partial(pinning.copy_async, host, on_device, None, queue)
            assert to_device().path == "direct", (name, to_device())
            yield Row("to the device", name, least(to_device, queue.synchronize), inward)
            yield Row("to the host", name, least(to_host, queue.synchronize), outward)
        address, size = int(locked.ctypes.data), SIZE
        by_address = partial(pinning.copy_async, there.ptr, address, size, queue)
        yield Row("to the device", "two addresses, nbytes", least(by_address, queue.synchronize), inward)
        no_queue = partial(pinning.copy_async, there, locked)
        default = pinning.queues.default_queue(device)
        yield Row("to the device", "NumPy array, no queue given", least(no_queue, default.synchronize), inward)
        yield Row(
            "fill", "Allocation", least(partial(pinning.fill_async, there, 7, None, queue), queue.synchronize), None
        )
        if device.name.startswith("cuda") and importlib.util.find_spec("torch"):
            import torch

            if torch.cuda.is_available():
                tensor = torch.zeros(SIZE, dtype=torch.uint8, device=device.name)
                source = torch.zeros(SIZE, dtype=torch.uint8).pin_memory()
                own = partial(tensor.copy_, source, non_blocking=True)
                yield Row("to the device", "torch's own copy_", least(own, torch.cuda.synchronize), inward)


def lookups(device: Any) -> Iterator[Row]:
    """Locks and lookups in a locked region, and pools."""
    array = numpy.zeros(1 << 20, numpy.uint8)
    view, address = array[4096:8192], int(array.ctypes.data)

    def settle() -> None:
        pass

    with pinning.lock(array, device=device), pinning.Queue(device) as queue:
        ways: dict[str, Do] = {
            "lock(view).unlock()": lambda: pinning.lock(view, device=device).unlock(),
            "is_locked(address)": partial(pinning.is_locked, address),
            "is_locked(array)": partial(pinning.is_locked, array),
            "is_locked(view)": partial(pinning.is_locked, view),
            "find(address)": partial(pinning.find, address),
            "PinnedMap.find(address)": partial(pinning.pinned_map(device).find, address),
        }
        for name, do in ways.items():
            yield Row("lookup", name, least(do, settle, 1000), None)

        def pair() -> None:
            queue.free(queue.alloc(SIZE)[0])

        yield Row("pool", "queue.alloc and queue.free", least(pair, queue.synchronize), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    device = pinning.default_device() if options.device is None else pinning.device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        bare = bare_copies(Path(folder)) if device.name.startswith("cuda") else None
        rows = [*copies(device, bare), *lookups(device)]
    native = "native" if isinstance(device, NativeDevice) else "in Python"
    print(f"{device.name} ({native}), {SIZE} bytes, ns a call; Python {platform.python_version()}")
    for row in rows:
        own = "" if row.bare is None else f"  bare {row.bare:6.0f}  ours {row.ns - row.bare:6.0f}"
        print(f"{row.series:14} {row.what:36} {row.ns:7.0f}{own}")
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()

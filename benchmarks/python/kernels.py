# SPDX-License-Identifier: Apache-2.0
"""The two kernels that move blocks, timed by the GPU, by number of multiprocessors: ``kernels.py``.

256 MiB of blocks at random places of a locked GiB, in GB/s: with as many multiprocessors as the library uses, and more.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from statistics import median

import numpy

import pinning

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
KERNELS = Path(__file__).parents[2] / "native" / "vendors" / "cuda" / "kernels"
CUT = 16 * KIB  # the largest part of the library's lists
BULK_BYTES = 197632

cuda = ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    assert code == 0, f"CUDA error {code}"


class Kernel:
    def __init__(self, capability: int, name: str, threads: int, shared: int) -> None:
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.threads, self.shared = threads, shared
        check(cuda.cuModuleLoadData(ctypes.byref(module), (KERNELS / f"move_parts_{capability}.ptx").read_bytes()))
        check(cuda.cuModuleGetFunction(ctypes.byref(self.function), module, name.encode()))
        if shared:
            check(cuda.cuFuncSetAttribute(self.function, 8, shared))

    def milliseconds(self, parts: int, count: int, blocks: int) -> float:
        events = [ctypes.c_void_p() for _ in range(2)]
        for each in events:
            check(cuda.cuEventCreate(ctypes.byref(each), 0))
        given = ctypes.c_uint64(parts), ctypes.c_uint64(count)
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(each) for each in given))
        check(cuda.cuEventRecord(events[0], None))
        check(cuda.cuLaunchKernel(self.function, blocks, 1, 1, self.threads, 1, 1, self.shared, None, pointers, None))
        check(cuda.cuEventRecord(events[1], None))
        check(cuda.cuEventSynchronize(events[1]))
        taken = ctypes.c_float()
        check(cuda.cuEventElapsedTime(ctypes.byref(taken), *events))
        for each in events:
            check(cuda.cuEventDestroy_v2(each))
        return taken.value


def main() -> None:
    device = pinning.device("cuda:0")
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxPushCurrent_v2(context))
    kernels = {
        "loads and stores": (Kernel(70, "move_parts", 1024, 0), (4, 8, 16)),
        "bulk copies": (Kernel(90, "move_parts_in_bulk", 256, BULK_BYTES), (2, 3, 4, 6, 8)),
    }
    draw = numpy.random.default_rng(1)
    with (
        pinning.alloc(GIB, pinning.MemoryKind.HOST, device=device) as pool,
        pinning.alloc(256 * MIB, device=device) as there,
        pinning.alloc(24 * (256 * MIB // KIB), pinning.MemoryKind.HOST, device=device) as memory,
    ):
        for size in (KIB, 4 * KIB, 16 * KIB, 64 * KIB):
            count, cut = 256 * MIB // size, min(size, CUT)
            offsets = numpy.arange(0, size, cut, dtype=numpy.uint64)
            near = draw.permutation(GIB // size)[:count].astype(numpy.uint64) * numpy.uint64(size)
            near = (near[:, None] + offsets).ravel() + numpy.uint64(pool.ptr)
            far = numpy.arange(len(near), dtype=numpy.uint64) * numpy.uint64(cut) + numpy.uint64(there.ptr)
            for direction, ends in (("in", (far, near)), ("out", (near, far))):
                parts = numpy.column_stack([*ends, numpy.full(len(near), cut, numpy.uint64)])
                listed = numpy.asarray(memory)[: parts.nbytes]
                listed[:] = parts.view(numpy.uint8).ravel()
                for name, (kernel, grids) in kernels.items():
                    taken = {g: median(kernel.milliseconds(memory.ptr, len(near), g) for _ in range(5)) for g in grids}
                    figures = ", ".join(f"{grid}: {256 * MIB / 1e6 / each:.1f}" for grid, each in taken.items())
                    print(f"{size // KIB} KiB {direction}, {name}, GB/s by multiprocessors: {figures}", flush=True)
                del listed


if __name__ == "__main__":
    main()

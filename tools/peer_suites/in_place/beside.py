# SPDX-License-Identifier: Apache-2.0
"""``beside.py SECONDS [ours]``: threads that pin, copy and free memory at random, each with another library.

Each fills its memory, copies it to the GPU and compares what arrived. With "ours", a thread locks memory of the
heap and of mappings, and replaces some of it while it is locked; one locks arrays, whose registrations stay until
their memory is freed; another asks the driver about each region that is found. One line is printed for each thread:
"passed", or its first error.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
import threading
import time
from collections.abc import Callable

import numpy

KIB = 1 << 10
SIZES = (8 * KIB, 60 * KIB, 200 * KIB, 1024 * KIB, 5000 * KIB)  # of the C library's heap, and of mappings
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = LIBC.mmap.restype = ctypes.c_void_p
LIBC.malloc.argtypes = [ctypes.c_size_t]
LIBC.free.argtypes = [ctypes.c_void_p]
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
ANONYMOUS, MAP_FIXED = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0), 0x10
Turn = Callable[[random.Random], None]


class StaleError(Exception):
    """A lookup or a copy has given outdated results."""


class Runtime:
    """The driver, in the primary context of the first GPU, which all libraries use."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)

    def call(self, name: str, *arguments: object) -> None:
        if error := getattr(self.library, name)(*arguments):
            raise OSError(error, f"{name} has failed with {error}")

    def enter(self) -> None:
        self.call("cuCtxSetCurrent", self.context)

    def is_pinned(self, ptr: int) -> bool:
        memory_type, host = ctypes.c_uint(0), 1
        error = self.library.cuPointerGetAttribute(ctypes.byref(memory_type), 2, ctypes.c_uint64(ptr))
        return error == 0 and memory_type.value == host

    def arrives(self, memory: Memory) -> None:
        """Copy `memory` to the GPU and back; raises `StaleError` if other bytes than its fill come back."""
        ptr, nbytes, fill = memory.ptr, memory.size, memory.fill
        device, back = ctypes.c_uint64(), numpy.zeros(memory.size, "u1")
        self.call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(nbytes))
        try:
            self.call("cuMemcpyHtoD_v2", device, ctypes.c_void_p(ptr), ctypes.c_size_t(nbytes))
            self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(back.ctypes.data), device, ctypes.c_size_t(nbytes))
        finally:
            self.call("cuMemFree_v2", device)
        if not (back == fill).all():
            raise StaleError(f"{(back != fill).sum()} of {nbytes} bytes at {ptr:#x} are of another time")


class Memory:
    """New memory, of the heap or a mapping, filled with one byte value."""

    def __init__(self, size: int, chance: random.Random) -> None:
        self.size, self.is_mapping = size, chance.random() < 0.6
        self.ptr: int = LIBC.mmap(None, size, *ANONYMOUS) if self.is_mapping else LIBC.malloc(size)
        self.write(chance)

    def write(self, chance: random.Random) -> None:
        self.fill = chance.randrange(1, 256)
        ctypes.memset(self.ptr, self.fill, self.size)

    def replace(self, chance: random.Random) -> None:
        """Replace the pages in one call: after a munmap, another thread could map and register this address."""
        protection, flags, *file = ANONYMOUS
        LIBC.mmap(self.ptr, self.size, protection, flags | MAP_FIXED, *file)
        self.write(chance)

    def free(self) -> None:
        if self.is_mapping:
            LIBC.munmap(self.ptr, self.size)
        else:
            LIBC.free(self.ptr)


def torch_turn(runtime: Runtime) -> Turn:
    import torch

    def turn(chance: random.Random) -> None:
        size, fill = chance.choice(SIZES), chance.randrange(1, 256)
        tensor = torch.full((size,), fill, dtype=torch.uint8).pin_memory()
        there = tensor.to("cuda", non_blocking=True)
        if not bool((there == fill).all()):
            raise StaleError(f"a tensor of {size} bytes has not arrived")
        del tensor
        if chance.random() < 0.2:
            torch._C._host_emptyCache()  # unregisters and frees

    return turn


def cupy_turn(runtime: Runtime) -> Turn:
    import cupy

    def turn(chance: random.Random) -> None:
        size, fill = chance.choice(SIZES), chance.randrange(1, 256)
        array = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(size), "u1", size)
        array[:] = fill
        if not bool((cupy.asarray(array) == fill).all()):
            raise StaleError(f"an array of {size} bytes has not arrived")
        del array
        if chance.random() < 0.2:
            cupy.get_default_pinned_memory_pool().free_all_blocks()

    return turn


def driver_turn(runtime: Runtime) -> Turn:
    def turn(chance: random.Random) -> None:
        memory = Memory(chance.choice(SIZES), chance)
        ptr = ctypes.c_void_p(memory.ptr)
        runtime.call("cuMemHostRegister_v2", ptr, ctypes.c_size_t(memory.size), 0)
        runtime.arrives(memory)
        runtime.call("cuMemHostUnregister", ptr)
        memory.free()

    return turn


def lock_turn(runtime: Runtime) -> Turn:
    import pinning

    def turn(chance: random.Random) -> None:
        memory = Memory(chance.choice(SIZES), chance)
        lock = pinning.lock(memory.ptr, memory.size, device="cuda:0")
        runtime.arrives(memory)
        if memory.is_mapping and chance.random() < 0.5:
            memory.replace(chance)
            if lock.held:
                raise StaleError(f"{lock} is held after its memory has gone")
            lock = pinning.lock(memory.ptr, memory.size, device="cuda:0")
            runtime.arrives(memory)
        lock.unlock()
        memory.free()

    return turn


def array_turn(runtime: Runtime) -> Turn:
    import pinning

    pinning.budget(1 << 30, idle=True)

    def turn(chance: random.Random) -> None:
        array = numpy.full(chance.choice(SIZES), chance.randrange(1, 256), "u1")
        for _ in range(chance.randrange(1, 4)):
            with pinning.lock(array, device="cuda:0"):
                back = numpy.zeros_like(array)
                with pinning.alloc(array.nbytes, device="cuda:0") as there:
                    pinning.copy(there, array)
                    pinning.copy(back, there)
            if not numpy.array_equal(array, back):
                raise StaleError(f"an array of {array.nbytes} bytes has not arrived")

    return turn


def look_turn(runtime: Runtime) -> Turn:
    import pinning

    def turn(chance: random.Random) -> None:
        time.sleep(0.001)
        for region in pinning.regions("cuda:0"):
            is_so = runtime.is_pinned(region.start) and runtime.is_pinned(region.start + region.size - 1)
            now = pinning.find(region.start, device="cuda:0")
            if not is_so and now == region:
                raise StaleError(f"{region} is found, and the driver has no such registration")

    return turn


def main() -> None:
    runtime, deadline, ours = Runtime(), time.monotonic() + float(sys.argv[1]), "ours" in sys.argv[2:]
    makers = {"torch": torch_turn, "CuPy": cupy_turn, "the driver": driver_turn}
    makers |= {"lock": lock_turn, "lock of arrays": array_turn, "what is found": look_turn} if ours else {}
    said: dict[str, str] = {}
    turns: dict[str, Turn] = {}
    runtime.enter()
    for name, maker in makers.items():
        try:
            turns[name] = maker(runtime)
        except ImportError as error:
            said[name] = f"skipped: {error}"

    def work(name: str, turn: Turn, seed: int) -> None:
        chance, done = random.Random(seed), 0
        runtime.enter()
        try:
            while time.monotonic() < deadline:
                turn(chance)
                done += 1
            said[name] = f"passed {done} turns"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error} (turn {done}, seed {seed})"

    threads = [threading.Thread(target=work, args=(*turn, seed)) for seed, turn in enumerate(turns.items())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in makers:
        print(f"{name}: {said[name]}")


if __name__ == "__main__":
    main()

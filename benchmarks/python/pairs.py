# SPDX-License-Identifier: Apache-2.0
"""Locking and unlocking part of a locked region, from Python: ``pairs.py ROUNDS MOST_REGIONS [LLVM_MAP.so]``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from lookup import NoVendor
from rounds import Case, arguments, inside, nanoseconds, pages, take_turns

from pinning import PinnedMap

PART = 64  # bytes


def load_llvm(path: str) -> ctypes.CDLL:
    llvm = ctypes.CDLL(path)
    llvm.llvm_lock.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    llvm.llvm_unlock.argtypes = [ctypes.c_uint64]
    llvm.llvm_pairs.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t, ctypes.c_size_t]
    llvm.llvm_pairs.restype = ctypes.c_double
    return llvm


def measure(count: int, rounds: int, llvm: ctypes.CDLL | None) -> None:
    starts = pages(count)
    locked = PinnedMap(NoVendor())
    for start in starts:
        locked.lock(start, 4096)
    pointers = inside(starts, 1 << 14, PART)
    case = Case("pairs", "4 KiB", count)

    def ours() -> None:
        elapsed = nanoseconds(f"it.lock({{}}, {PART}); it.unlock({{}})", pointers, it=locked)
        case.add("lock + unlock in Python", "ns", "PinnedMap", elapsed)

    turns: list[Callable[[], None]] = [ours]
    if llvm is not None:
        addresses = (ctypes.c_uint64 * len(pointers))(*pointers)

        def theirs() -> None:
            elapsed = llvm.llvm_pairs(addresses, len(pointers), PART)
            case.add("lock + unlock in Python", "ns", "LLVM, in C++", elapsed)

        turns.append(theirs)
        for start in starts:
            llvm.llvm_lock(start, 4096)
    take_turns(rounds, turns)
    case.print()
    if llvm is not None:
        for start in starts:
            llvm.llvm_unlock(start)


if __name__ == "__main__":
    rounds, most, library = arguments()
    llvm = load_llvm(library) if library else None
    for count in (1, 1_000, 10_000, 100_000):
        if count <= most:
            measure(count, rounds, llvm)

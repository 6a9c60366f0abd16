# SPDX-License-Identifier: Apache-2.0
"""No lock outlives its memory, and what a program does with its memory works as it does without the tool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from programs import SOURCES, kernel_tells, run, run_plain

KIB = 2048
WAYS = ["shmat", "mremap", "process_madvise", "syscall"]
# Not seen by the functions that the tool interposes; the kernel reports them.
UNSEEN = ["raw munmap", "raw mmap", "raw mremap", "raw munmap, all files closed"]
# MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_DONTNEED_LOCKED, MADV_GUARD_INSTALL
ADVICE = ["4", "8", "20", "21", "24", "102"]


@pytest.fixture
def memory_goes(program: Callable[[Path], Path]) -> Path:
    return program(SOURCES / "memory_goes.c")


@pytest.mark.parametrize("how", [*WAYS, *UNSEEN, *ADVICE])
def test_a_lock_goes_before_its_pages_and_what_comes_is_locked_anew(memory_goes: Path, how: str) -> None:
    if how in UNSEEN and not kernel_tells():
        pytest.skip("needs userfaultfd, which is refused here")
    if run_plain(memory_goes, how).code == 77:
        pytest.skip(f"needs a kernel that has {how}")
    ran = run(memory_goes, how, lock_min_bytes=65536)
    assert ran.code == 0, ran.errors
    assert [int(kib) for kib in ran.out.split()] == [KIB, 0, KIB]


def test_a_call_that_the_kernel_refuses_ends_no_lock(memory_goes: Path) -> None:
    ran = run(memory_goes, "refused", lock_min_bytes=65536)
    assert (ran.code, [int(kib) for kib in ran.out.split()]) == (0, [KIB, KIB, KIB]), ran.errors


@pytest.mark.parametrize("how", ["stack", "stack of C11"])
def test_a_stack_is_not_locked_though_its_thread_uses_no_openmp(memory_goes: Path, how: str) -> None:
    ran = run(memory_goes, how, lock_min_bytes=65536)
    assert ran.out.split() == ["0", "0"]
    assert any("it lies on a stack" in why for why in ran.refused)


def test_a_stack_that_goes_with_its_thread_without_a_word(memory_goes: Path) -> None:
    ran = run(memory_goes, "thread", lock_min_bytes=65536)
    assert (ran.code, [int(kib) for kib in ran.out.split()]) == (0, [KIB, 2 * KIB]), ran.errors

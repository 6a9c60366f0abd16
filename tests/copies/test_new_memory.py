# SPDX-License-Identifier: Apache-2.0
"""Copies into memory that no page fault has populated: the bytes arrive, and no more than they need is populated."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pinning
from new_memory import NewMemory, huge_pages_in, pages_of
from noise import noise
from pinning.copies import costs

MIB = 1 << 20
SIZE = 24 * MIB
SOURCE = noise(SIZE)


def copy_into_new(start: int, size: int, populated: range = range(0)) -> NewMemory:
    memory = NewMemory(SIZE)
    for page in populated:
        memory.array[page * 4096] = 1
    with pinning.Queue(device="host:0") as queue:
        pinning.copy(memory.array[start : start + size], SOURCE[:size], queue=queue)
    assert numpy.array_equal(memory.array[start : start + size], SOURCE[:size])
    return memory


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 8 * MIB), st.integers(1, 16 * MIB))
def test_only_the_pages_that_are_written_are_populated(start: int, size: int) -> None:
    memory = copy_into_new(start, size)
    assert memory.populated() == pages_of(start, size)


@pytest.mark.parametrize("start", [0, 1, 2 * MIB - 1, 3 * MIB + 12345])
@pytest.mark.parametrize("huge_from", [0, 4 * MIB, 10 * MIB, 10 * MIB + 1])
def test_huge_pages_are_asked_for_where_all_their_bytes_are_written(
    start: int, huge_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "huge_from", huge_from)
    size = 10 * MIB
    memory = copy_into_new(start, size)
    wanted = 0 < huge_from <= size
    assert memory.advised() == (huge_pages_in(memory.ptr, start, size) if wanted else [])
    assert memory.populated() == pages_of(start, size)


def test_no_huge_pages_are_asked_for_where_memory_is_populated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "huge_from", MIB)
    memory = copy_into_new(0, 10 * MIB, range(10 * MIB // 4096))
    assert memory.advised() == []

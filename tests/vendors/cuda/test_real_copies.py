# SPDX-License-Identifier: Apache-2.0
"""Copies on a real GPU: each path moves the right bytes, in order, and no unlock releases memory during a copy."""

from __future__ import annotations

import numpy
import pytest

import pinning
from noise import noise

MIB = 1 << 20


@pytest.mark.parametrize("size", [1, 1000, 3 * MIB + 5, 8 * MIB, 100 * MIB + 77])
def test_pageable_memory_goes_there_and_comes_back(queue: pinning.Queue, size: int) -> None:
    array, back = noise(size), numpy.zeros(size, numpy.uint8)
    with pinning.alloc(size, device=queue.device) as there:
        pinning.copy_async(there, array, queue=queue)
        copy = pinning.copy_async(back, there, queue=queue)
        copy.wait()
    assert (back == array).all()
    assert copy.path == ("staged" if size >= 8 * MIB and pinning.copies.costs.threads > 1 else "plain")


def test_later_work_overwrites_and_earlier_work_is_seen(queue: pinning.Queue) -> None:
    first, second, back = noise(64 * MIB, 1), noise(64 * MIB, 2), numpy.zeros(64 * MIB, numpy.uint8)
    with pinning.alloc(64 * MIB, device=queue.device) as there:
        pinning.copy_async(there, first, queue=queue)
        pinning.copy_async(back, there, queue=queue)
        pinning.copy_async(there, second, queue=queue)
        queue.synchronize()
        assert (back == first).all()
        pinning.copy(back, there, queue=queue)
        assert (back == second).all()


@pytest.mark.parametrize("to_device", [True, False])
def test_a_lock_that_is_given_up_under_a_copy(queue: pinning.Queue, to_device: bool) -> None:
    array, back = noise(512 * MIB), numpy.zeros(512 * MIB, numpy.uint8)
    on = pinning.pinned_map(queue.device)
    with pinning.alloc(512 * MIB, device=queue.device) as there:
        with pinning.lock(array if to_device else back, device=queue.device):
            copies = [pinning.copy_async(there, array, queue=queue), pinning.copy_async(back, there, queue=queue)]
        assert {copy.path for copy in copies} == {"direct", "staged"}
        for copy in copies:
            copy.wait()
        assert (back == array).all()
        assert on.find(array.ctypes.data) is None
        assert on.find(back.ctypes.data) is None


def test_a_range_that_is_locked_in_parts(queue: pinning.Queue) -> None:
    array, back = noise(40 * MIB), numpy.zeros(40 * MIB, numpy.uint8)
    with (
        pinning.alloc(40 * MIB, device=queue.device) as there,
        pinning.lock(array[100 : 10 * MIB], device=queue.device),
        pinning.lock(array[20 * MIB : 30 * MIB], device=queue.device, piece=4 * MIB),
    ):
        assert len(pinning.explain(there, array, queue=queue).steps) > 4
        pinning.copy(there, array, queue=queue)
        pinning.copy(back, there, queue=queue)
    assert (back == array).all()


def test_host_to_host_does_not_block(queue: pinning.Queue) -> None:
    array, back = noise(4 * MIB), numpy.zeros(4 * MIB, numpy.uint8)
    pinning.copy_async(back, array, queue=queue).wait()
    assert (back == array).all()

# SPDX-License-Identifier: Apache-2.0
"""The README's promises, for a user limited by RLIMIT_MEMLOCK."""

from __future__ import annotations

import numpy
import pytest

import pinning
from child_process import run_as_ordinary_user
from pinning.copies import Reason, costs


@pytest.mark.parametrize("memlock", [8 << 20, 64 << 10, 0])
def test_pageable_copies_where_no_staging_ring_can_be_locked(memlock: int) -> None:
    def check() -> None:
        costs.threads = 4  # as on a machine with many processors
        array = numpy.arange(1 << 20)
        back = numpy.empty_like(array)
        with pinning.Queue("host") as queue:
            there, _ = queue.alloc(array.nbytes)
            pinning.copy_async(there, array, queue=queue)
            pinning.copy(back, there, queue=queue)
            queue.free(there)
        assert (back == array).all()

    run_as_ordinary_user(check, memlock)


def test_a_copy_that_cannot_be_staged_names_the_limit_and_explain_agrees() -> None:
    def check() -> None:
        costs.threads = 4
        array = numpy.ones(16 << 20, numpy.uint8)
        with pinning.Queue("host") as queue:
            there, _ = queue.alloc(array.nbytes)
            plan = pinning.explain(there, array, queue=queue)
            copy = pinning.copy_async(there, array, queue=queue)
            copy.wait()
            assert (plan.path, plan.reason, plan.reason_code) == (copy.path, copy.reason, Reason.NO_ROOM)
            assert copy.path == "plain" == plan.steps[0].path
            assert "RLIMIT_MEMLOCK leaves 65536 bytes (64 KiB) to lock" in copy.reason
            assert "--pid $$" in copy.reason
            queue.free(there)

    run_as_ordinary_user(check, 64 << 10)


@pytest.mark.parametrize("memlock", [1 << 20, 0])
def test_no_room_is_one_error_whoever_asks(memlock: int) -> None:
    def check() -> None:
        with pytest.raises(pinning.LockLimitError, match="RLIMIT_MEMLOCK"):
            pinning.lock(bytearray(2 << 20), device="host")
        with pytest.raises(pinning.LockLimitError, match="RLIMIT_MEMLOCK"):
            pinning.pinned_map("host").lock(pinning.interop.memory_of.host_buffer(bytearray(2 << 20)).ptr, 2 << 20)
        with pytest.raises(pinning.LockLimitError, match="RLIMIT_MEMLOCK"):
            pinning.alloc(2 << 20, pinning.MemoryKind.HOST, device="host")
        assert pinning.regions() == []
        pinning.alloc(2 << 20, device="host").free()

    run_as_ordinary_user(check, memlock)

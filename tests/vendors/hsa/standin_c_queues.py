# SPDX-License-Identifier: Apache-2.0
"""Errors of asynchronous work in queues of <pinning/pinning.h>: HSA reports each of them to one signal only."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import c_api
import pinning
from noise import noise
from pinning import MemoryKind
from standins.standin import StandIn

SIZE = 1 << 16
FAILED = "the completion signal is negative"


def test_an_error_reaches_the_event_and_the_queue(standin: StandIn, gpu: Any) -> None:
    host, locks = noise(SIZE), c_api.Map(gpu.name)
    with pinning.alloc(SIZE, MemoryKind.DEVICE, device=gpu) as there, c_api.Queue(gpu.name) as queue:
        locks.lock(host.ctypes.data, SIZE)
        standin.configure("failing_copy")
        event = queue.copy(there.ptr, host.ctypes.data, SIZE)
        with pytest.raises(c_api.StatusError, match=FAILED):
            queue.synchronize()
        standin.configure()
        for ask in (event.wait, event.done, event.wait):  # also after the queue has told of it
            with pytest.raises(c_api.StatusError, match=FAILED):
                ask()
        queue.synchronize()
        queue.copy(there.ptr, host.ctypes.data, SIZE).wait()
        locks.unlock(host.ctypes.data)
        assert locks.find(host.ctypes.data) is None


def test_an_error_of_a_copy_without_an_event_reaches_the_queue(standin: StandIn, gpu: Any) -> None:
    host = noise(SIZE)
    with pinning.alloc(SIZE, MemoryKind.DEVICE, device=gpu) as there, pinning.lock(host, device=gpu):
        queue = c_api.Queue(gpu.name)
        standin.configure("failing_copy")
        queue.copy_without_event(there.ptr, host.ctypes.data, SIZE)
        with pytest.raises(c_api.StatusError, match=FAILED):
            queue.destroy()


def test_a_copy_that_fails_is_reported_by_its_wait(standin: StandIn, gpu: Any) -> None:
    host, locks = noise(SIZE), c_api.Map(gpu.name)
    with pinning.alloc(SIZE, MemoryKind.DEVICE, device=gpu) as there:
        locks.lock(host.ctypes.data, SIZE)
        standin.configure("failing_copy")
        with pytest.raises(c_api.StatusError, match=FAILED):
            locks.copy_async(there.ptr, host.ctypes.data, SIZE).wait()
        with pytest.raises(c_api.StatusError, match=FAILED):
            locks.copy(there.ptr, host.ctypes.data, SIZE)
        standin.configure()
        locks.unlock(host.ctypes.data)
        assert locks.find(host.ctypes.data) is None
        back = numpy.zeros(SIZE, numpy.uint8)
        locks.copy(there.ptr, host.ctypes.data, SIZE)
        locks.copy(back.ctypes.data, there.ptr, SIZE)
        assert (back == host).all()

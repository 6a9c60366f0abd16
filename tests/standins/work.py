# SPDX-License-Identifier: Apache-2.0
"""Work for a device on a stand-in: every operation of a queue, and copies by the path that the planner chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy

import c_api
import pinning
from pinning.conformance.allocations import FREE
from pinning.errors import VendorError
from pinning.plugin.native import NativeQueue
from standins.standin import StandIn


def submit_all(queue: NativeQueue, ptr: int, there: int) -> None:
    """Submit every kind of work."""
    queue.copy(there, ptr, 8)
    queue.copy_2d(there, 8, ptr, 8, 4, 2)
    queue.fill(there, b"\1", 8)
    queue.call(FREE, 0)
    queue.write_value(ptr, 5)
    queue.wait_value(ptr, 5)
    event = queue.record()
    queue.wait(event)
    event.wait()
    assert event.done()
    event.seconds_since(event)
    queue.synchronize()
    assert queue.done()


def failing_in_turn(standin: StandIn, act: Callable[[], object]) -> Iterator[Exception | None]:
    """Act with each driver call failing in turn, then with none; yields each run's error."""
    for n in count(1):
        standin.configure(f"fail=*:{n}:999")
        refused = None
        try:
            act()
        except (VendorError, MemoryError, c_api.StatusError) as error:
            refused = error.with_traceback(None)  # whose frames would keep what was allocated
        calls = standin.calls()
        standin.configure()
        yield refused
        if n > len(calls):
            assert refused is None
            return


def there_and_back(device: Any, array: numpy.ndarray) -> tuple[str, str]:
    """Copy to the device and back, check the bytes, and return the two paths."""
    back = numpy.zeros_like(array)
    with pinning.Queue(device) as queue, pinning.alloc(array.nbytes, device=device) as there:
        foretold = pinning.explain(there, array, queue=queue).path
        up = pinning.copy_async(there, array, queue=queue)
        assert up.path == foretold
        down = pinning.copy_async(back, there, queue=queue)
        down.wait()
        assert up.done()
    assert (back == array).all()
    return up.path, down.path

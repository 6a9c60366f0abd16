# SPDX-License-Identifier: Apache-2.0
"""The HIP locker's own rules, on the stand-in runtime. The device is the second one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_int

import pytest

import c_api
from mapped_memory import PAGE, Memory
from standins.libhip import DRIVER
from standins.standin import StandIn


@pytest.fixture
def hip() -> Iterator[ctypes.CDLL]:
    """The runtime, as other code calls it; at the end the thread's device must again be the first."""
    runtime = ctypes.CDLL(DRIVER.soname)
    yield runtime
    assert current_device(runtime) == 0


def current_device(hip: ctypes.CDLL) -> int:
    device = c_int(-1)
    assert hip.hipGetDevice(byref(device)) == 0
    return device.value


def test_a_runtime_that_registers_twice_is_not_asked_to(standin: StandIn, native: c_api.Map, hip: ctypes.CDLL) -> None:
    memory = Memory(3)
    standin.configure("silent_duplicates")
    assert hip.hipHostRegister(ctypes.c_void_p(memory.ptr + PAGE), ctypes.c_size_t(PAGE), 3) == 0
    native.lock(memory.ptr + PAGE, 10)
    for start in (memory.ptr, memory.ptr + PAGE + 1):
        with pytest.raises(c_api.StatusError, match="PARTIAL_OVERLAP"):
            native.lock(start, 2 * PAGE - 1)
    assert len(standin.calls("hipHostRegister")) == 1
    native.unlock(memory.ptr + PAGE)
    assert hip.hipHostUnregister(ctypes.c_void_p(memory.ptr + PAGE)) == 0

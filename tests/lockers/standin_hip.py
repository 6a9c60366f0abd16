# SPDX-License-Identifier: Apache-2.0
"""The HIP locker's own rules, on the stand-in runtime. The device is the second one."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p

import pytest

import c_api
from mapped_memory import PAGE, Memory
from standins.libhip import DRIVER
from standins.standin import StandIn


def test_a_runtime_that_registers_twice_is_not_asked_to(standin: StandIn, native: c_api.Map) -> None:
    hip, memory, current = ctypes.CDLL(DRIVER.soname), Memory(3), c_int(-1)
    standin.configure("silent_duplicates")
    assert hip.hipHostRegister(c_void_p(memory.ptr + PAGE), c_size_t(PAGE), 3) == 0
    native.lock(memory.ptr + PAGE, 10)
    for start in (memory.ptr, memory.ptr + PAGE + 1):
        with pytest.raises(c_api.StatusError, match="PARTIAL_OVERLAP"):
            native.lock(start, 2 * PAGE - 1)
    assert len(standin.calls("hipHostRegister")) == 1
    native.unlock(memory.ptr + PAGE)
    assert hip.hipHostUnregister(c_void_p(memory.ptr + PAGE)) == 0
    assert hip.hipGetDevice(byref(current)) == 0
    assert current.value == 0, "the thread's device is again the first"

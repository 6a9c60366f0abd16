# SPDX-License-Identifier: Apache-2.0
"""Locking and unlocking through `HipDevice`: results, flags, refusals."""

from __future__ import annotations

import numpy
import pytest
from hip import hip

import pinning
from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError, StillLockedError, VendorError
from pinning_hip import plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


@pytest.mark.parametrize("read_only", [False, None, True])
@pytest.mark.parametrize(("coherent", "flags"), [([], 3), ([True], 3), ([False], 11)])
def test_registrations_are_for_all_devices_and_coarse_grained_only_where_asked(
    standin: StandIn, read_only: bool | None, coherent: list[bool], flags: int
) -> None:
    # 8 is hipExtHostRegisterCoarseGrained and, in some releases, hipHostRegisterReadOnly too.
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, read_only, *coherent)
    (call,) = standin.calls("hipHostRegister")
    assert int(call.split()[-1]) == flags
    DEVICE.data_unlock(memory.ptr)


def test_a_refusal_does_not_surface_in_other_libraries(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, None)
    with pytest.raises(AlreadyPinnedError):
        DEVICE.data_lock(memory.ptr, PAGE, None)
    assert DEVICE.is_pinned_ptr(memory.ptr + PAGE) is None
    standin.configure("fail=hipHostUnregister:1:4242")
    with pytest.raises(VendorError):
        DEVICE.data_unlock(memory.ptr)
    assert hip.hipGetLastError() == (0,)
    DEVICE.data_unlock(memory.ptr)


def test_what_one_device_has_locked_coarse_grained_is_not_coherent_for_another(standin: StandIn) -> None:
    memory = numpy.zeros(PAGE, "u1")
    with pinning.locked(memory, device="hip:0", coherent=False):
        with pytest.raises(StillLockedError, match="coarse-grained"):
            pinning.lock(memory, device="hip:1", coherent=True)
        with pinning.locked(memory, device="hip:1", coherent=False):
            assert len(standin.registrations()) == 1
    with pinning.locked(memory, device="hip:1", coherent=True):
        assert len(standin.registrations()) == 1

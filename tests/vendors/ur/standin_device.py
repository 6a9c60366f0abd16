# SPDX-License-Identifier: Apache-2.0
"""The plugin and its devices, two of Level Zero and one of OpenCL: names, adapters, contexts, and copies."""

from __future__ import annotations

import pytest

import pinning
from mapped_memory import PAGE, Memory
from pinning.errors import VendorError
from pinning_ur import UrPlugin, plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


def test_a_device_says_whether_its_adapter_can_lock(standin: StandIn) -> None:
    assert [plugin.device(i).can_lock for i in range(3)] == [True, True, False]
    asked = standin.calls()
    assert [plugin.device(i).can_lock for i in range(3)] == [True, True, False]
    assert standin.calls() == asked, "once for each adapter"
    assert pinning.default_device() is plugin.device(0)


def test_an_adapter_that_fails_may_yet_lock(standin: StandIn) -> None:
    standin.configure("fail=urUSMHostAllocUnregisterExp:1:20")
    assert UrPlugin().device(2).can_lock is True, "that is for a lock to find out"


def test_a_platform_has_one_context_and_a_device_one_queue(standin: StandIn) -> None:
    memory = Memory(1)
    for made in (range(4), [0]):  # at most 3: other tests may have created some
        for device in (plugin.device(i) for i in range(3)):
            there = device.allocate(PAGE)
            device.copy(there, memory.ptr, PAGE)
            device.copy(there, memory.ptr, PAGE)
            device.free(there)
        assert len(standin.calls("urContextCreate")) in made
        assert len(standin.calls("urQueueCreate")) in made
        standin.configure()
    contexts = [plugin.device(i).context for i in range(3)]
    assert contexts[0] == contexts[1] != contexts[2]
    assert UrPlugin().device(0).context == contexts[0]


def test_a_copy_past_the_end_of_an_allocation_is_refused(standin: StandIn) -> None:
    memory = Memory(2)
    there = DEVICE.allocate(PAGE)
    with pytest.raises(VendorError, match=r"urEnqueueUSMMemcpy failed: UR_RESULT_ERROR_INVALID_VALUE \(4\)"):
        DEVICE.copy(there, memory.ptr, 2 * PAGE)
    DEVICE.free(there)

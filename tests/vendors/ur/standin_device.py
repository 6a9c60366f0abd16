# SPDX-License-Identifier: Apache-2.0
"""The plugin and its devices, two of Level Zero and one of OpenCL: names, adapters, contexts, and copies."""

from __future__ import annotations

from functools import partial

import pytest

import pinning
from fake_device import Background
from mapped_memory import PAGE, Memory
from pinning.errors import VendorError
from pinning.plugin import DescribedPlugin, Library
from pinning_ur import UrPlugin, plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


def test_the_context_is_made_once_however_many_threads_begin(standin: StandIn) -> None:
    # Must be the first test in this process: a context, once created, is kept.
    memory = Memory(2)
    standin.configure("delay=urContextCreate:60000")
    threads = [Background(partial(DEVICE.data_lock, memory.ptr + i * PAGE, PAGE, False)) for i in (0, 1)]
    while len(standin.calls("urContextCreate")) < 2:
        pass
    standin.configure()
    for thread in threads:
        thread.result()
    assert len(standin.calls("urContextRelease")) == 1
    (context,) = {call.split()[1] for call in standin.calls("urUSMHostAllocRegisterExp")}
    assert int(context, 16) == DEVICE.context
    for i in (0, 1):
        DEVICE.data_unlock(memory.ptr + i * PAGE)


def test_a_device_says_whether_its_adapter_can_lock(standin: StandIn) -> None:
    assert [plugin.device(i).can_lock for i in range(3)] == [True, True, False]
    asked = standin.calls()
    assert [plugin.device(i).can_lock for i in range(3)] == [True, True, False]
    assert standin.calls() == asked, "once for each adapter"
    assert pinning.default_device() is plugin.device(0)


def test_an_adapter_that_fails_may_yet_lock(standin: StandIn) -> None:
    standin.configure("fail=urUSMHostAllocUnregisterExp:1:20")
    assert UrPlugin().device(2).can_lock is True, "that is for a lock to find out"


def test_the_plugin_describes_itself(standin: StandIn) -> None:
    assert isinstance(plugin, DescribedPlugin)
    assert plugin.library() == Library("libur_loader.so.0", "0.12 (Level Zero, OpenCL)")
    assert list(plugin.warnings()) == []


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

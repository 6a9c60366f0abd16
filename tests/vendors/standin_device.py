# SPDX-License-Identifier: Apache-2.0
"""A plugin and its devices: tests for all vendors."""

from __future__ import annotations

from typing import Any

import pytest

from mapped_memory import PAGE, Memory
from pinning.errors import PluginUnavailableError, VendorError
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import Vendor, this_vendor


def test_devices_are_named_and_stay_the_same(standin: StandIn, vendor: Vendor) -> None:
    plugin = vendor.plugin
    assert plugin.name == vendor.name
    assert plugin.device_count() == vendor.count
    assert [plugin.device(i).name for i in range(3)] == [f"{vendor.name}:{i}" for i in range(3)]
    assert plugin.device(2) is plugin.device(2)
    assert plugin.device(2).description == vendor.description
    if vendor.pci_address:
        assert plugin.device(2).pci_address == vendor.pci_address


@pytest.mark.parametrize("index", [-1, this_vendor().count])
def test_a_device_that_is_not_there(standin: StandIn, vendor: Vendor, index: int) -> None:
    with pytest.raises(PluginUnavailableError, match=f"no {vendor.name}:{index}.*sees {vendor.count}"):
        vendor.plugin.device(index)


@only("cuda", "hip")
def test_a_copy_across_the_border_of_a_lock_is_refused_as_the_driver_does(
    standin: StandIn, vendor: Vendor, gpu: Any
) -> None:
    memory = Memory(2)
    there = gpu.allocate(2 * PAGE)
    gpu.data_lock(memory.ptr, PAGE, False)
    with pytest.raises(VendorError) as raised:
        gpu.copy(there, memory.ptr, 2 * PAGE)
    assert (raised.value.call, raised.value.code, raised.value.name) == vendor.copy_border
    gpu.data_unlock(memory.ptr)
    gpu.free(there)

# SPDX-License-Identifier: Apache-2.0
"""The plugin: names, counts, the same device each time, and a device that locks or says why not."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest

from pinning import PinningError, PluginUnavailableError, VendorError
from pinning.conformance.conftest import missing_members
from pinning.plugin import ENTRY_POINT_GROUP, Device, Plugin


def test_it_locks_memory_or_is_known_to_refuse(
    device: Device, refusal: PinningError | None, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--refuses"):
        assert refusal is None, f"{device.name} cannot lock a page of ordinary memory: {refusal} (see --refuses)"
        return
    assert refusal is not None, f"{device.name} does lock memory: run it without --refuses"
    assert isinstance(refusal, VendorError), f"a refusal names the vendor's call: {refusal!r} is no VendorError"
    assert refusal.call, "a refusal names the call that is missing"
    assert refusal.code, "a refusal has the vendor's code"
    assert refusal.name, "a refusal has the vendor's name of that code"
    assert refusal.advice, "a refusal says what is missing, or the way out"


def test_it_says_beforehand_whether_it_can_lock(device: Device, refusal: PinningError | None) -> None:
    if not hasattr(device, "can_lock"):
        pytest.skip(f"{device.name} has no can_lock: pinning.plugin.Device")
    assert device.can_lock is (refusal is None)


def test_names(plugin: Plugin, device: Device) -> None:
    name = device.vendor
    assert plugin.name == name
    assert device.name == f"{name}:{device.index}"
    assert [plugin.device(i).name for i in range(plugin.device_count())] == [
        f"{name}:{i}" for i in range(plugin.device_count())
    ]


def test_a_device_is_the_same_object_each_time(plugin: Plugin, device: Device) -> None:
    assert plugin.device(device.index) is device
    assert plugin.device(device.index) is device


def test_a_device_that_is_not_there(plugin: Plugin) -> None:
    count = plugin.device_count()
    for index in (-1, count, count + 1000):
        with pytest.raises(PluginUnavailableError) as raised:
            plugin.device(index)
        assert str(index) in str(raised.value), "the error names the device that is not there"


def test_a_device_has_the_members_of_the_interface(device: Device) -> None:
    assert missing_members(device) == [], "see pinning.plugin.Device; AutomaticLocking has all but the vendor's calls"
    assert isinstance(device, Device)


def test_counting_again_gives_the_same(plugin: Plugin) -> None:
    assert plugin.device_count() == plugin.device_count() >= 1


def test_importing_the_plugin_starts_nothing(plugin: Plugin) -> None:
    """No thread, which a fork would lose: `device_count` is the first call to load the driver."""
    (entry,) = entry_points(group=ENTRY_POINT_GROUP, name=plugin.name)
    threads = "len(os.listdir('/proc/self/task'))"
    program = f"import os, pinning; before = {threads}; import {entry.module}; print({threads} - before)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"


def test_it_describes_its_library(plugin: Any) -> None:
    if not (hasattr(plugin, "library") and hasattr(plugin, "warnings")):
        pytest.skip(f"{plugin.name} has no library() and warnings(): pinning.plugin.Plugin")
    library = plugin.library()
    assert library.name and library.version
    assert all(isinstance(warning, str) and warning for warning in plugin.warnings())

# SPDX-License-Identifier: Apache-2.0
"""The plugin and its devices: the runtime is started once, and a second one warned of."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

from fake_device import in_threads
from pinning.plugin.native_plugin import NativePlugin
from pinning_hsa import HsaDevice, plugin
from standins.standin import StandIn


def test_the_runtime_is_initialised_once(standin: StandIn) -> None:
    plugin.device_count()
    standin.configure()
    for _ in range(3):
        NativePlugin("hsa", HsaDevice).device_count()
    assert standin.calls("hsa_init") == []


def test_many_threads_get_the_same_device(standin: StandIn) -> None:
    fresh = NativePlugin("hsa", HsaDevice)
    standin.configure("delay=hsa_iterate_agents:50")
    assert len(set(map(id, in_threads(fresh.device, [1] * 4)))) == 1


def test_a_second_runtime_in_the_process_is_warned_of(standin: StandIn, tmp_path: Path) -> None:
    assert plugin.warnings() == []
    maps = Path("/proc/self/maps").read_text().splitlines()
    (ours,) = {line.split(maxsplit=5)[-1] for line in maps if "/libhsa-runtime64" in line}
    theirs = tmp_path / "libhsa-runtime64-0123abcd.so"  # named like a wheel's own copy; its SONAME differs too
    content = Path(ours).read_bytes().replace(b"libhsa-runtime64.so.1\0", b"libhsa-runtime64.so.2\0")
    theirs.write_bytes(content)
    shutil.copymode(ours, theirs)
    ctypes.CDLL(str(theirs))
    (warning,) = plugin.warnings()
    assert ours in warning
    assert str(theirs) in warning
    assert "LD_LIBRARY_PATH" in warning

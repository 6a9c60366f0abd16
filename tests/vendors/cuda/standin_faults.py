# SPDX-License-Identifier: Apache-2.0
"""What this driver's failures are besides those of every driver, which the conformance suite tests.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

from pinning.conformance.faults import each_failure
from pinning_cuda import CudaDevice, plugin
from standins.libcuda import FAULTS
from standins.standin import StandIn


def test_a_device_is_made_or_not(standin: StandIn) -> None:
    assert plugin.device(0)  # so that the driver is initialised
    failed = [call for call, _ in each_failure(FAULTS, lambda: CudaDevice("cuda:0", 0))]
    assert set(failed) == {"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute"}

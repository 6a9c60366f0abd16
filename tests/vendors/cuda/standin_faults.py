# SPDX-License-Identifier: Apache-2.0
"""Failures specific to this driver; the conformance suite tests those common to all drivers."""

from __future__ import annotations

from collections.abc import Callable

from pinning.conformance.faults import each_failure
from pinning_cuda import CudaDevice, plugin
from standins.libcuda import FAULTS
from standins.standin import StandIn

DEVICE = plugin.device(0)
UNKNOWN, _ = FAULTS.failure


def test_a_question_is_answered_or_not(standin: StandIn) -> None:
    questions: dict[str, Callable[[], object]] = {
        "cuDeviceGetName": lambda: CudaDevice("cuda:0").description,
        "cuDeviceGetAttribute": lambda: CudaDevice("cuda:0").memory_kinds,
        "cuDeviceGetCount": plugin.device_count,
        "cuDriverGetVersion": plugin.library,
    }
    for call, question in questions.items():
        assert [failed for failed, _ in each_failure(FAULTS, question)] == [call]


def test_a_place_on_the_bus_that_is_not_told(standin: StandIn) -> None:
    for n in (1, 2, 3):
        standin.configure(f"fail=cuDeviceGetAttribute:{n}:{UNKNOWN}")
        assert DEVICE.pci_address is None

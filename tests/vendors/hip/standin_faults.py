# SPDX-License-Identifier: Apache-2.0
"""Failures specific to this runtime; the conformance suite tests those common to all drivers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hip import hip

from mapped_memory import PAGE, Memory
from pinning.conformance.faults import each_failure
from pinning.errors import VendorError
from pinning_hip import HipDevice, plugin
from standins.libhip import FAULTS
from standins.standin import StandIn

DEVICE = plugin.device(0)
UNKNOWN, _ = FAULTS.failure


def test_a_question_is_answered_or_not(standin: StandIn) -> None:
    questions: dict[str, Callable[[], object]] = {
        "hipDeviceGetName": lambda: HipDevice("hip:0").description,
        "hipDeviceGetAttribute": lambda: HipDevice("hip:0").memory_kinds,
        "hipRuntimeGetVersion": plugin.library,
    }
    for call, question in questions.items():
        assert call in [failed for failed, _ in each_failure(FAULTS, question)]


def test_a_device_that_cannot_be_made_current(standin: StandIn) -> None:
    memory = Memory(1)
    hip.hipSetDevice(1)
    standin.configure(f"fail=hipSetDevice:1:{UNKNOWN}")
    with pytest.raises(VendorError, match="hipSetDevice failed: hipErrorUnknown"):
        DEVICE.data_lock(memory.ptr, PAGE, False)
    assert standin.registrations() == set()
    hip.hipSetDevice(0)


def test_a_code_that_is_unknown(standin: StandIn) -> None:
    standin.configure("fail=hipRuntimeGetVersion:1:4242")
    with pytest.raises(VendorError) as failure:
        plugin.library()
    assert (failure.value.call, failure.value.code) == ("hipRuntimeGetVersion", 4242)

# SPDX-License-Identifier: Apache-2.0
"""Failures specific to this runtime; the conformance suite tests those common to all drivers."""

from __future__ import annotations

import os

import pytest

from mapped_memory import PAGE
from own_process import run
from pinning.errors import VendorError
from pinning_hsa import plugin
from standins.libhsa import FAULTS
from standins.standin import StandIn

DEVICE = plugin.device(0)
FAILURE, _ = FAULTS.failure


PROGRAM = """
from pinning.errors import PinningError
from pinning_hsa import plugin
for _ in range(2):
    try:
        print(plugin.device(0).description)
    except PinningError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "call",
    [
        *("hsa_init", "hsa_iterate_agents", "hsa_agent_get_info"),
        *("hsa_amd_agent_iterate_memory_pools", "hsa_amd_memory_pool_get_info"),
        "hsa_amd_agent_memory_pool_get_info",
    ],
)
def test_a_machine_that_cannot_be_asked_can_be_asked_again(standin: StandIn, call: str) -> None:
    environment = {**os.environ, "STANDIN_HSA": f"gpus=2;fail={call}:1:{FAILURE}"}
    failed, asked_again = run(PROGRAM, environment).splitlines()
    assert f"{call} failed: HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)" in failed
    assert asked_again == "Stand-in 0 (gfx942)"


def test_a_status_that_the_runtime_has_no_name_for(standin: StandIn) -> None:
    standin.configure("fail=hsa_amd_memory_pool_allocate:1:77")
    with pytest.raises(VendorError, match=r"hsa_amd_memory_pool_allocate failed: unknown \(77\)"):
        DEVICE.allocate(PAGE)

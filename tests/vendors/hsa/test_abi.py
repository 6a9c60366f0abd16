# SPDX-License-Identifier: Apache-2.0
"""The constants and functions of native/vendors/hsa/hsa_abi.hpp, against the vendor's headers."""

from __future__ import annotations

from pathlib import Path

from standins import abi, libhsa

HEADERS = ["hsa/hsa.h", "hsa/hsa_ext_amd.h"]
LISTS = ["PINNING_HSA_FUNCTIONS", "PINNING_HSA_CONSTANTS"]


def test_functions_and_constants_are_those_of_the_headers(tmp_path: Path) -> None:
    abi.check(libhsa.DRIVER, "hsa", HEADERS, LISTS, tmp_path)


def test_a_wrong_prototype_in_the_stand_in_does_not_compile(tmp_path: Path) -> None:
    wrongs = {
        "another type": ("hsa_amd_memory_unlock(void *host_ptr)", "hsa_amd_memory_unlock(long host_ptr)"),
        "another name": ("hsa_amd_memory_unlock", "hsa_amd_memory_unlok"),
    }
    abi.check_stand_in(libhsa.DRIVER, wrongs, tmp_path)

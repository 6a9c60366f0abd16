# SPDX-License-Identifier: Apache-2.0
"""The constants and functions of native/vendors/ur/ur_abi.hpp, against the vendor's headers."""

from __future__ import annotations

from pathlib import Path

from standins import abi, libur

HEADERS = ["unified-runtime/ur_api.h", "unified-runtime/ur_print.h"]
LISTS = ["PINNING_UR_FUNCTIONS", "PINNING_UR_RECENT_FUNCTIONS", "PINNING_UR_CONSTANTS"]


def test_functions_and_constants_are_those_of_the_headers(tmp_path: Path) -> None:
    abi.check(libur.DRIVER, "ur", HEADERS, LISTS, tmp_path)


def test_a_wrong_prototype_in_the_stand_in_does_not_compile(tmp_path: Path) -> None:
    wrongs = {
        "another type": (
            "urUSMFree(ur_context_handle_t hContext, void *pMem)",
            "urUSMFree(int hContext, void *pMem)",
        ),
        "another name": ("UR_APICALL urUSMFree(", "UR_APICALL urUSMFre("),
    }
    abi.check_stand_in(libur.DRIVER, wrongs, tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""The constants of native/vendors/hip/hip_abi.hpp, against the vendor's header."""

from __future__ import annotations

from pathlib import Path

from standins import abi, libhip


def test_constants_are_those_of_the_header(tmp_path: Path) -> None:
    # Functions are not checked: the header also has templates of them, so their types are ambiguous.
    abi.check(libhip.DRIVER, "hip", ["hip/hip_runtime_api.h"], ["PINNING_HIP_CONSTANTS"], tmp_path)

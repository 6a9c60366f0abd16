# SPDX-License-Identifier: Apache-2.0
"""What native/vendors/hip/hip_abi.hpp says of constants, against the vendor's header."""

from __future__ import annotations

from pathlib import Path

from standins import abi, libhip


def test_constants_are_those_of_the_header(tmp_path: Path) -> None:
    # Of functions the header has templates too, which make their types ambiguous.
    abi.check(libhip.DRIVER, "hip", ["hip/hip_runtime_api.h"], ["PINNING_HIP_CONSTANTS"], tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""The constants and functions of native/vendors/cuda/cuda_abi.hpp, against the vendor's header."""

from __future__ import annotations

from pathlib import Path

from standins import abi, libcuda


def test_functions_and_constants_are_those_of_the_header(tmp_path: Path) -> None:
    abi.check(libcuda.DRIVER, "cuda", ["cuda.h"], ["PINNING_CUDA_FUNCTIONS", "PINNING_CUDA_CONSTANTS"], tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""What native/vendors/hsa/hsa_abi.hpp says of constants and functions, against the vendor's headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from standins import abi, libhsa
from standins.standin import MissingError

HEADERS = ["hsa/hsa.h", "hsa/hsa_ext_amd.h"]
LISTS = ["PINNING_HSA_FUNCTIONS", "PINNING_HSA_CONSTANTS"]


def test_functions_and_constants_are_those_of_the_headers(tmp_path: Path) -> None:
    abi.check(libhsa.DRIVER, "hsa", HEADERS, LISTS, tmp_path)


def test_a_wrong_prototype_in_the_stand_in_does_not_compile(tmp_path: Path) -> None:
    try:
        libhsa.DRIVER.build(tmp_path)
    except MissingError as missing:
        pytest.skip(str(missing))
    right = (Path(libhsa.__file__).parent / libhsa.DRIVER.source).read_text()
    wrongs = {
        "another type": right.replace("hsa_amd_memory_unlock(void *host_ptr)", "hsa_amd_memory_unlock(long host_ptr)"),
        "another name": right.replace("hsa_amd_memory_unlock", "hsa_amd_memory_unlok"),
    }
    for what, wrong in wrongs.items():
        assert wrong != right
        path = tmp_path / "wrong.c"
        path.write_text(wrong)
        assert libhsa.DRIVER.compile(path, tmp_path / "wrong.so").returncode, what

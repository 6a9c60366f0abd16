# SPDX-License-Identifier: Apache-2.0
"""The stand-in libamdhip64.so itself must fit the vendor's header and hip-python."""

from __future__ import annotations

from pathlib import Path

import pytest

from standins.libhip import DRIVER
from standins.standin import MissingError

WRONG = {
    "another argument": "hipError_t hipHostRegister(void *ptr, size_t size, unsigned long flags) { return 0; }",
    "another result": "int hipHostUnregister(void *ptr) { return ptr == 0; }",
    "no such function": "hipError_t hipHostRegisterSomehow(void *ptr) { return ptr ? hipSuccess : hipErrorUnknown; }",
}


@pytest.mark.parametrize("definition", WRONG.values(), ids=list(WRONG))
def test_a_wrong_prototype_does_not_compile(tmp_path: Path, definition: str) -> None:
    source = tmp_path / "wrong.c"
    source.write_text(f"#include <hip/hip_runtime_api.h>\n{definition}\n")
    try:
        done = DRIVER.compile(source, tmp_path / "wrong.so")
    except MissingError as missing:
        pytest.skip(str(missing))
    assert done.returncode != 0
    assert "error" in done.stderr


def test_it_goes_by_the_name_that_the_bindings_load(standin_folder: Path) -> None:
    assert (standin_folder / "libamdhip64.so").read_bytes().count(b"\0libamdhip64.so\0") >= 1  # its SONAME

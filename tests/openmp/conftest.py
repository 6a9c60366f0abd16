# SPDX-License-Identifier: Apache-2.0
"""The tool, clang for offloading to the CPU, and the stand-in driver of CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from programs import MissingClangError, compile_program

from limits import needs_room_to_lock
from standins.libcuda import DRIVER
from standins.standin import MissingError


class Programs:
    """Compiles each program once a session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[Path, Path] = {}

    def __call__(self, source: Path) -> Path:
        if source not in self._made:
            try:
                self._made[source] = compile_program(source, self._folder / source.stem)
            except MissingClangError as missing:
                pytest.skip(str(missing))
        return self._made[source]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Compiles an OpenMP program for the CPU's devices, whose memory is to be locked."""
    needs_room_to_lock(8 << 20)
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def standin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in libcuda.so.1 is, for programs started with `DRIVER.environment`."""
    try:
        return DRIVER.build(tmp_path_factory.mktemp("libcuda"))
    except MissingError as missing:
        pytest.skip(str(missing))

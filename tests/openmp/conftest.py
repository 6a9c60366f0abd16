# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tool, for clang that offloads to the CPU, and for the stand-in driver of CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from programs import TOOL, MissingClangError, compile_program

from limits import needs_room_to_lock
from standins.cases import Run, on_standin
from standins.libcuda import DRIVER

TOOL_LOADED = {"PINNING_LOCK_MIN_BYTES": "4096", "LD_PRELOAD": str(TOOL)}
VARIABLES: dict[str, dict[str, dict[str, str]]] = {
    "standin_tool": {"": {**TOOL_LOADED, "PINNING_LOCK_BUDGET": "1MiB"}},
    "standin_sequences": {
        "": TOOL_LOADED,
        "little room": {**TOOL_LOADED, "PINNING_LOCK_BUDGET": "40KiB", "PINNING_LOCK_AFTER": "1"},
        "until unmapped": {**TOOL_LOADED, "PINNING_LOCK_UNTIL": "unmapped"},
    },
    "standin_unseen": {"": {"PINNING_LOCK_MIN_BYTES": "4096"}},  # not loaded first: frees call the C library's own free
}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    variables = VARIABLES.get(module_path.stem, {})
    runs = {name: Run(DRIVER, "devices=2", variables=more) for name, more in variables.items()}
    return on_standin(module_path, parent, runs)


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
    """Compiles an OpenMP program for the CPU's devices. Skips if too little memory can be locked."""
    needs_room_to_lock(8 << 20)
    return Programs(tmp_path_factory.mktemp("programs"))

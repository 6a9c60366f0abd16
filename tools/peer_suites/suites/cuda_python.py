# SPDX-License-Identifier: Apache-2.0
"""cuda-python: the tests of cuda.bindings and cuda.core that copy, allocate or wait. PATH is a clone."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

FILES = ["cuda_bindings/tests", "cuda_core/tests", "cuda_python_test_helpers"]
WAYS = ["pinning run", STAGED]
EXPLAINED: dict[str, str] = {}
TESTS = {
    "cuda_bindings": "cuda cudart interoperability kernelParams utils",
    "cuda_core": "context device event green_context launcher memory memory_peer_access module stream utils "
    "utils_dlpack",
}
# Left out is memory_ipc, which fails bare in a virtual machine.
FOLDERS: dict[str, list[str]] = {"cuda_bindings": [], "cuda_core": ["graph", "memory"]}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for package, names in TESTS.items():
        folder = checkout / package / "tests"
        files = [*(f"test_{name}.py" for name in names.split()), *FOLDERS[package]]
        (work / package).mkdir(exist_ok=True)
        own = {case.removeprefix(f"{package}.") for case in only or () if case.startswith(package)}
        if only is None or own:
            there = [each for each in files if (folder / each).exists()]
            found = pytest(folder, work / package, way, own or None, *there)
            results |= {f"{package}.{case}": result for case, result in found.items()}
    return results

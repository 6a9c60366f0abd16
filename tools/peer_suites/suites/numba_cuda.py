# SPDX-License-Identifier: Apache-2.0
"""numba-cuda: its installed tests of memory, arrays and streams. PATH is an environment that has it."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

WAYS = [STAGED, "pinning.numba"]
EXPLAINED = {"test_deallocations|test_ownership": "skipped, as for each memory manager but Numba's own"}
# Replaces modules that its tests import and that may be absent, and a fixture that only its repository has. pytest
# cannot collect tests of numba.cuda, which is another name of numba_cuda.numba.cuda; an import works.
SETUP = """
import numpy, sys, unittest.mock, pytest
numpy.row_stack = numpy.vstack  # which NumPy 2.5 has no more
for each in ("filecheck", "filecheck.finput", "filecheck.matcher", "filecheck.options", "filecheck.parser"):
    sys.modules.setdefault(each, unittest.mock.MagicMock())
@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
"""
# test_managed_alloc is left out: it takes twice the GPU's memory as managed memory, and the machine may hang.
TESTS = {
    "cudadrv": "array_attr context_stack cuda_array_slicing cuda_auto_context cuda_devicerecord cuda_memory "
    "cuda_ndarray deallocations emm_plugins events host_alloc pinned reset_device select_device streams",
    "cudapy": "cuda_array_interface ipc multithreads record_dtype retrieve_autoconverted_arrays stream_api",
}


def version(path: Path) -> str:
    command = [path / "bin" / "python", "-c", "from importlib.metadata import version; print(version('numba-cuda'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    (work / "conftest.py").write_text(SETUP)
    for folder, names in TESTS.items():
        for name in names.split():
            (work / f"test_{name}.py").write_text(f"from numba.cuda.tests.{folder}.test_{name} import *\n")
    python = checkout / "bin" / "python"
    manager = {"NUMBA_CUDA_MEMORY_MANAGER": way} if way == "pinning.numba" else {}
    return pytest(work, work, way, only, ".", python=python, **manager)

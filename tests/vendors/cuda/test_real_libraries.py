# SPDX-License-Identifier: Apache-2.0
"""Numba, CuPy, cuda.core and torch with memory of this package, each in its own process, on a real GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "numba": "with_numba.py",
    "cupy": "with_cupy.py",
    "cuda.core": "with_cuda_core.py",
    "torch": "with_torch.py",
}


@pytest.mark.usefixtures("real_gpu")
@pytest.mark.parametrize("library", PROGRAMS)
def test_it_works_with_memory_of_ours(library: str) -> None:
    pytest.importorskip(library, reason=f"needs {library}")
    if library == "numba":
        reason = "needs numba-cuda: pip install numba-cuda"
        pytest.importorskip("pinning.numba", reason=reason, exc_type=ImportError)
    program = Path(__file__).parent / PROGRAMS[library]
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all right" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Numba, CuPy, cuda.core and torch with memory of this package, each in its own process, on a real GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "with_numba.py": "numba",
    "with_cupy.py": "cupy",
    "with_cuda_core.py": "cuda.core",
    "with_torch.py": "torch",
    "with_sleep.py": "torch",
    "with_sleep_ranks.py": "torch",
}


@pytest.mark.usefixtures("real_gpu")
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_works_with_memory_of_ours(program: str) -> None:
    library = PROGRAMS[program]
    pytest.importorskip(library, reason=f"needs {library}")
    if library == "numba":
        reason = "needs numba-cuda: pip install numba-cuda"
        pytest.importorskip("pinning.numba", reason=reason, exc_type=ImportError)
    path = Path(__file__).parent / program
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all right" in done.stdout

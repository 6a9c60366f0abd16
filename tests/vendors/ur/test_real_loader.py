# SPDX-License-Identifier: Apache-2.0
"""The plugin on the real loader and its OpenCL adapter, whose device is the CPU: what a stand-in cannot prove.

The OpenCL adapter cannot lock host memory, so locking stays unproven; its refusal is tested here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from standins.child import run_pytest

OPENCL = Path(sys.prefix) / "lib" / "libintelocl.so"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The environment of a process whose loader finds the CPU."""
    if not (OPENCL.exists() and (OPENCL.parent / "libur_adapter_opencl.so.0").exists()):
        pytest.skip("needs the CPU of Unified Runtime: pip install intel-opencl-rt 'intel-cmplr-lib-ur<2026.2'")
    return {**os.environ, "OCL_ICD_FILENAMES": str(OPENCL), "ONEAPI_DEVICE_SELECTOR": "opencl:cpu"}


def test_on_the_cpu(environment: dict[str, str]) -> None:
    print(run_pytest(Path(__file__).parent / "real_cpu.py", environment=environment))

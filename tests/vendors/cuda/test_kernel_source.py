# SPDX-License-Identifier: Apache-2.0
"""The PTX in libpinning.so must be the one compiled from the source beside it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from folders import ROOT

KERNELS = ROOT / "native" / "vendors" / "cuda" / "kernels"
COMPILER = "nvidia-cuda-nvrtc-cu12"
VERSION = "12.1.105"


def generator() -> ModuleType:
    spec = spec_from_file_location("generate", KERNELS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("capability", [70, 90])
def test_the_ptx_is_that_of_its_source(capability: int) -> None:
    try:
        found = version(COMPILER)
    except PackageNotFoundError:
        found = None
    if found != VERSION:
        pytest.skip(f"needs {COMPILER} {VERSION}, which makes the same PTX, and found {found}")
    generate = generator()
    source = (KERNELS / "move_parts.cu").read_bytes()
    with ThreadPoolExecutor(1) as thread:  # the compiler permanently changes the locale of the thread that calls it
        made = thread.submit(generate.compiled, source, capability).result()
    assert made == (KERNELS / f"move_parts_{capability}.ptx").read_text(), "run native/vendors/cuda/kernels/generate.py"

# SPDX-License-Identifier: Apache-2.0
"""Files to map, and a real GPU, for the tests of pinning_cuda."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pinning
from pinning.plugin import CopyDevice

sys.path.append(str(Path(__file__).parent))

from mapped_memory import PAGE, Memory


@pytest.fixture
def file_memory(tmp_path: Path) -> Callable[[int, int], Memory]:
    """Function that maps a file of two pages with the given protection and flags."""
    path = tmp_path / "file of pages"
    path.write_bytes(b"x" * 2 * PAGE)

    def map_file(prot: int, flags: int) -> Memory:
        with path.open("r+b") as file:
            return Memory(2, prot, flags, file.fileno())

    return map_file


@pytest.fixture(scope="session")
def real_gpu() -> CopyDevice:
    """The first GPU of this machine; without one the test is skipped."""
    try:
        device = pinning.device("cuda:0")
    except pinning.PluginUnavailableError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    assert isinstance(device, CopyDevice)
    return device


@pytest.fixture
def queue(real_gpu: CopyDevice) -> Iterator[pinning.Queue]:
    """A queue of a real GPU. The tests on the stand-in define their own."""
    with pinning.Queue(real_gpu) as queue:
        yield queue

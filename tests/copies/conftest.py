# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of copies."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import pinning
from fake_memory import FakeMemoryDevice
from pinning.copies import trim_staging


@pytest.fixture
def device() -> Iterator[FakeMemoryDevice]:
    """A device whose queues do their work at once."""
    device = FakeMemoryDevice(held=False)
    yield device
    device.let_go()
    gc.collect()
    trim_staging()
    assert device.wrong == []
    pinning.pinned_map(device).close()


@pytest.fixture
def queue(device: FakeMemoryDevice) -> Iterator[pinning.Queue]:
    with pinning.Queue(device) as queue:
        yield queue

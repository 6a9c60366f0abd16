# SPDX-License-Identifier: Apache-2.0
"""The fixture that all tests of locks share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import pinning
from fake_device import FakeDevice


@pytest.fixture
def device(device: FakeDevice) -> Iterator[FakeDevice]:
    yield device
    gc.collect()
    assert device.locked == {}, "a test has left something locked"
    assert pinning.regions(device) == []

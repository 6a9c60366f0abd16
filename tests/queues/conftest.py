# SPDX-License-Identifier: Apache-2.0
"""The fixture that all tests of queues share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fake_memory import FakeMemoryDevice, held_device


@pytest.fixture
def device() -> Iterator[FakeMemoryDevice]:
    """A device whose queues hold their work until it is released."""
    with held_device() as device:
        yield device

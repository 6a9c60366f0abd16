# SPDX-License-Identifier: Apache-2.0
"""What tests of queues have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fake_memory import FakeMemoryDevice, held_device


@pytest.fixture
def device() -> Iterator[FakeMemoryDevice]:
    """Its queues hold their work until it is released."""
    with held_device() as device:
        yield device

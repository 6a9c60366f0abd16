# SPDX-License-Identifier: Apache-2.0
"""A real GPU on which a test leaves nothing locked; tests import it with ``*``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pinning
from pinning import PinnedMap
from pinning.plugin import CopyDevice


def entered(on: PinnedMap) -> list[pinning.Region]:
    """The regions that locks have entered or count in, without unused ones registered by pools of other tests."""
    return [region for region in on if not region.registered or region.references]


@pytest.fixture
def gpu(real_gpu: CopyDevice) -> Iterator[CopyDevice]:
    real_gpu.free(real_gpu.allocate(1))  # creates the context that other libraries use too
    yield real_gpu
    assert entered(pinning.pinned_map(real_gpu)) == [], "a test left something locked"

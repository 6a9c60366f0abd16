# SPDX-License-Identifier: Apache-2.0
"""Copies from files on the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pinning
from file_copies import *  # noqa: F403


@pytest.fixture
def queue() -> Iterator[pinning.Queue]:
    with pinning.Queue("host") as queue:
        yield queue
    pinning.copies.trim_staging()

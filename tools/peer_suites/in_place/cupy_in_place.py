# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: device and pinned memory of CuPy are ours, until a test sets an allocator of its own."""

import pytest

import pinning.cupy


@pytest.fixture(autouse=True)
def ours() -> None:
    pinning.cupy.install()  # before each test, for others end with an allocator of CuPy's

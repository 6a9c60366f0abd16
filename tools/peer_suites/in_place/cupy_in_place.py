# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: device and pinned memory of CuPy are ours, until a test sets another allocator."""

import pytest

import pinning.cupy


@pytest.fixture(autouse=True)
def ours() -> None:
    pinning.cupy.install()  # before each test, because others end with an allocator of CuPy's

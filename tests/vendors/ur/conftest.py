# SPDX-License-Identifier: Apache-2.0
"""An older stand-in for the tests of pinning_ur."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from standins.libur import OLD_DRIVER
from standins.standin import Driver


@pytest.fixture(scope="session")
def old_standin_folder(build: Callable[[Driver], Path]) -> Path:
    """The folder of a stand-in for the loader of 2025.2."""
    return build(OLD_DRIVER)

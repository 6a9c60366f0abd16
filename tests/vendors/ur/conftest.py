# SPDX-License-Identifier: Apache-2.0
"""The helpers beside the tests of pinning_ur, imported by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

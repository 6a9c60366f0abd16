# SPDX-License-Identifier: Apache-2.0
"""The modules of this folder, and those that all tests share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

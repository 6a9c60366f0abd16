# SPDX-License-Identifier: Apache-2.0
"""Makes the modules of this folder importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

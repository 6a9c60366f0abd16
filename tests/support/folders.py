# SPDX-License-Identifier: Apache-2.0
"""Where the repository and these helpers are, for tests and for the programs that they start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
# As in pyproject.toml for pytest, before what the caller has.
PYTHONPATH = os.pathsep.join([str(SUPPORT), str(SUPPORT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])

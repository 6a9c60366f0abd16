# SPDX-License-Identifier: Apache-2.0
"""Copies between host and devices that take the fastest path there is.

- ``copy.py``: `copy`, `copy_async`, `copy_2d_async`, `fill`, `explain`;
- ``ends.py``: whose memory the two ends are;
- ``plan.py``: which path each part takes, and why; ``costs.py``: where one path beats another;
- ``submit.py``: the vendor's calls; `pinning.staging` moves pageable memory by way of pinned blocks;
- ``repeats.py``: ranges that are copied often; ``bounce.py``: devices that cannot reach each other.
"""

from pinning.copies.copy import copy, copy_2d_async, copy_async, explain, fill
from pinning.copies.costs import Costs, costs
from pinning.copies.direct import Copy
from pinning.copies.plan import Path, Plan, Step
from pinning.copies.trim import trim_staging

__all__ = [
    "Copy",
    "Costs",
    "Path",
    "Plan",
    "Step",
    "copy",
    "copy_2d_async",
    "copy_async",
    "costs",
    "explain",
    "fill",
    "trim_staging",
]

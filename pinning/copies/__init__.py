# SPDX-License-Identifier: Apache-2.0
"""Copies between host and devices, by the fastest path available.

- ``direct``: `copy_async`, `copy`, `fill_async`, `explain`, and copies that are one vendor call;
- ``copy.py``: all others; ``rows.py``: rows; ``work``: operations for queues, planned by <pinning/copy_plan.hpp>;
- ``ends``: whose memory the two ends are;
- ``plan.py``: the contents of a plan; ``costs.py``: where one path beats another;
- ``batch``: many copies as one; ``batch_plan.py``: how their parts are copied;
- ``waited.py``: the forms of batches, rows and fills that wait;
- `pinning.queues.staging` moves pageable memory through pinned blocks;
- ``links.py``: large copies, over the links of several devices;
- ``bounce.py``: devices that cannot reach each other.
"""

from pinning.copies.batch import copy_batch_async, copy_blocks_async, explain_batch
from pinning.copies.batch_plan import BatchPlan, Group
from pinning.copies.costs import Costs, costs
from pinning.copies.direct import copy, copy_async, explain, fill_async
from pinning.copies.plan import CopyPath, Plan, Reason, Step
from pinning.copies.rows import copy_2d_async
from pinning.copies.trim import trim_staging
from pinning.copies.waited import copy_2d, copy_batch, copy_blocks, fill
from pinning.copies.work import Copy

__all__ = [
    "BatchPlan",
    "Copy",
    "CopyPath",
    "Costs",
    "Group",
    "Plan",
    "Reason",
    "Step",
    "copy",
    "copy_2d",
    "copy_2d_async",
    "copy_async",
    "copy_batch",
    "copy_batch_async",
    "copy_blocks",
    "copy_blocks_async",
    "costs",
    "explain",
    "explain_batch",
    "fill",
    "fill_async",
    "trim_staging",
]

# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: what this process receives lies in locked memory, however small it is."""

from __future__ import annotations

from types import SimpleNamespace

import pinning.dask

worker = SimpleNamespace(metrics={})
pinning.dask.LockedFrames(64 << 20, "host:0", smallest=1).setup(worker)
assert "locked_bytes" in worker.metrics

# SPDX-License-Identifier: Apache-2.0
"""Giving back memory and queues that copies keep for later ones."""

from __future__ import annotations

from pinning.copies import links
from pinning.queues import staging
from pinning.queues.cross_vendor_wait import close_idle_helpers


def trim_staging() -> int:
    """Give back memory of all devices that copies do not use now; returns the number of bytes.

    It is that of idle staging rings, of the lists of parts that kernels read, and of blocks on peers whose links copies
    have used. Idle queues for such peers, and idle helper queues for waits between vendors, are closed too.
    """
    close_idle_helpers()
    return links.trim() + staging.trim_staging()

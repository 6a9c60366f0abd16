# SPDX-License-Identifier: Apache-2.0
"""Giving back what copies keep for the next ones."""

from __future__ import annotations

from pinning.copies import links
from pinning.queues import staging
from pinning.queues.cross_vendor_wait import close_idle_helpers


def trim_staging() -> int:
    """Give memory back that copies do not use now, of all devices; returns how many bytes.

    It is that of idle staging rings, of the lists of parts that kernels read, and of blocks on peers over whose links
    copies have gone. Queues of such peers, and those in which signals between vendors have been given, are closed too.
    """
    close_idle_helpers()
    return links.trim() + staging.trim_staging()

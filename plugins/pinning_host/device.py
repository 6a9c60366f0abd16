# SPDX-License-Identifier: Apache-2.0
"""The device ``host:0``."""

from __future__ import annotations

from pinning.plugin import AutomaticLocking, LockLimit
from pinning.plugin.native import NativeDevice
from pinning_host import kernel


class HostDevice(NativeDevice, AutomaticLocking):
    """Host memory: locked by mlock, allocated by mmap, copied by a thread for each queue.

    Its pages are counted per process: this device, all maps over it and native code share the counts.
    """

    def lock_limit(self) -> LockLimit | None:
        """RLIMIT_MEMLOCK, or None if it does not bind this process."""
        limit = kernel.lock_limit()
        if limit is None:
            return None
        soft, hard, used = limit
        if hard == soft:
            remedy = "sudo prlimit --memlock=unlimited --pid $$"
        else:
            remedy = "ulimit -l unlimited" if hard < 0 else f"ulimit -l {hard // 1024}"
        # Not for this process, which may have ended by then.
        return LockLimit("RLIMIT_MEMLOCK", soft, used, f"{remedy}  # in the shell that starts the program")

# SPDX-License-Identifier: Apache-2.0
from typing import Any

from pinning.plugin.locking import PinnedInfo
from pinning.plugin.memory import MemoryInfo, MemoryKind

class NativeDevice:
    """A device whose vendor is implemented in libpinning, for a plugin to derive its devices from.

    Its locking, its memory and its queues are those of ``<pinning/vendor.hpp>``; a map over it is the one that native
    code of this process has. No call holds the GIL, and none can be interrupted half way.

    Parameters
    ----------
    name : str
        In full, such as ``"cuda:0"``.

    Raises
    ------
    PluginUnavailableError
        There is no such device, or its driver does not start.
    """

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def handle(self) -> int:
        """The vendor's own handle of the device, such as a ``ur_device_handle_t``; 0 where there is none."""

    @property
    def context(self) -> int:
        """The vendor's handle of the context in which it locks and allocates, or the pool that it allocates from.

        0 where there is none.
        """

    @property
    def problems(self) -> list[str]:
        """What is wrong with the vendor's installation although it works."""

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take."""

    @property
    def coherence(self) -> frozenset[bool]:
        """What locked memory can be: True for coherent, False for coarse-grained."""

    def data_lock(self, ptr: int, size: int, read_only: bool | None = None, coherent: bool = True) -> int:
        """Lock ``[ptr, ptr + size)`` and return its device pointer; see `pinning.plugin.Device`."""

    def data_unlock(self, ptr: int) -> None:
        """Undo the `data_lock` of the range that starts at `ptr`. After an error it is still locked."""

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned range around `ptr`, whoever pinned it, as far as the vendor can tell."""

    def allocate(self, size: int, kind: MemoryKind = ...) -> int:
        """Exactly `size` bytes; see `pinning.plugin.MemoryDevice`."""

    def allocate_write_combined(self, size: int) -> int:
        """As `allocate` of kind HOST, of memory that the host's caches do not hold where the vendor has that."""

    def free(self, ptr: int, kind: MemoryKind = ...) -> None:
        """Give back what `allocate` returned for this kind. After an error it is still allocated."""

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The allocation or registration around `ptr`, whoever made it."""

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes in either direction, and wait until it is done."""

    def synchronize(self) -> None:
        """Wait until all work submitted to this device is done."""

    def make_queue(self) -> NativeQueue:
        """A new in-order queue."""

    def adopt_queue(self, handle: int) -> NativeQueue:
        """The in-order queue that someone else made, by the vendor's handle; it is not closed by us."""

class NativeQueue:
    """An in-order queue of a `NativeDevice`: a `pinning.plugin.VendorQueue`, whose methods it has."""

    @property
    def handle(self) -> int: ...
    @property
    def waits_for_values(self) -> bool: ...
    @property
    def moves_parts(self) -> bool:
        """Whether the device has a kernel that copies many parts at once."""

    def copy(self, dst: int, src: int, size: int) -> None: ...
    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None: ...
    def fill(self, ptr: int, value: bytes, count: int) -> None: ...
    def call(self, function: int, argument: int) -> None: ...
    def wait_value(self, address: int, value: int) -> None: ...
    def write_value(self, address: int, value: int) -> None: ...
    def write_then_wait(self, written: int, value: int, awaited: int, reached: int) -> None:
        """`write_value` and then `wait_value`, by one call where the vendor has one for both."""

    def record(self) -> NativeEvent: ...
    def wait(self, event: object) -> None: ...
    def done(self) -> bool: ...
    def synchronize(self) -> None: ...
    def close(self) -> None: ...

class NativeEvent:
    """A point in a `NativeQueue`: a `pinning.plugin.VendorEvent`, whose methods it has."""

    def done(self) -> bool: ...
    def wait(self) -> None: ...
    def seconds_since(self, earlier: object) -> float: ...

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, SupportsIndex

from pinning.memory.context import Context
from pinning.plugin import Device, MemoryDevice, MemoryKind

class Allocation:
    """Memory of one kind, made by `alloc` or by a queue's ``alloc``; a context manager, which frees it at the end.

    What is dropped without being freed warns (ResourceWarning) and is freed soon after. In a child process after fork
    it counts as freed: memory belongs to the process that allocated it.

    HOST and SHARED memory is a writable buffer of bytes: for `memoryview`, NumPy, ``torch.frombuffer``, DLPack. As long
    as such a buffer is out the memory cannot be freed.

    Attributes
    ----------
    ptr : int
        The first byte's address: the host's of HOST memory, else the device's.
    device_ptr : int
        The same byte's address for `device`.
    size, nbytes : int
        Bytes, exactly as asked for.
    kind : MemoryKind
    context : Context
        Who owns it.
    device : MemoryDevice
        Where it was allocated.
    pool : Pool or None
        Where it came from.
    """

    @property
    def ptr(self) -> int: ...
    @property
    def device_ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def kind(self) -> MemoryKind: ...
    @property
    def context(self) -> Context: ...
    @property
    def device(self) -> MemoryDevice: ...
    @property
    def pool(self) -> Any: ...
    @property
    def read_only(self) -> bool:
        """Whether its pool promises that devices only read it."""

    @property
    def freed(self) -> bool:
        """Whether it is freed, or of another process."""

    def free(self) -> None:
        """Give the memory back. Work that was submitted elsewhere than in our queues must be done.

        Raises
        ------
        InvalidRangeError
            It is freed already.
        StillInUseError
            A queue still uses it, or a buffer of its bytes is out.
        StillLockedError
            Someone holds a lock in it.
        VendorError
            The vendor refused.

        After any error but the first it is as before and can be freed again. In a child process after fork nothing
        happens.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(self, **how: Any) -> Any: ...

def find(ptr: SupportsIndex, first: Iterable[Device] = ()) -> Allocation | None:
    """The allocation that holds the byte at an address, on these devices or else on any.

    Addresses of different vendors' devices may be the same.
    """

def devices_used() -> list[Device]:
    """The devices on which something has been allocated, in the order of their first use."""

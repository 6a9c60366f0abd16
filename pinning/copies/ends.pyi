# SPDX-License-Identifier: Apache-2.0
"""The two ends of a copy: which bytes they are, and whose memory."""

from pinning.plugin import Device, MemoryDevice

class End:
    """One end of a copy.

    Attributes
    ----------
    ptr : int
        Its first byte: the host's address of host memory, else the device's.
    size : int or None
        Bytes; None for a bare address.
    device : MemoryDevice or None
        Whose memory it is; None for the host's.
    read_only : bool
        Whether it may not be written.
    owner : object
        What keeps the memory alive; None where the caller does.
    """

    def __init__(
        self, ptr: int, size: int | None, device: MemoryDevice | None, read_only: bool, owner: object
    ) -> None: ...
    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int | None: ...
    @property
    def device(self) -> MemoryDevice | None: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def owner(self) -> object: ...

def end_of(buffer: object, preferred: Device | None = None) -> End:
    """Find out what one end of a copy is.

    Parameters
    ----------
    buffer : object
        An `Allocation`, a `Lock` that is held, anything that `pinning.lock` takes and that has no gaps, an object with
        DLPack's C exchange API or ``__cuda_array_interface__``, or an address of host or device memory. An `End` is
        itself.
    preferred : Device, optional
        Whose memory an address is when several devices know it.

    Raises
    ------
    InvalidRangeError
        Freed, unlocked, empty or null; or its bytes do not follow one another.
    TypeError
        It is no buffer.
    """

# SPDX-License-Identifier: Apache-2.0
"""A ring of pinned blocks, and copies by way of it; `pinning/staging.hpp` has how they work."""

COUNTER_BYTES: int
PIECE_BYTES: int
WORN: int

class Ring:
    """Pinned blocks for the staged copies of one queue at a time, one after the other.

    Parameters
    ----------
    ptr : int
        Host address of ``COUNTER_BYTES + nbytes`` bytes of pinned memory, which stay until the ring is gone.
    nbytes : int
        All blocks together, a multiple of `PIECE_BYTES`.
    """

    ptr: int
    nbytes: int
    def __init__(self, ptr: int, nbytes: int) -> None: ...
    @property
    def taken_address(self) -> int:
        """Host address of the word by which the device tells how many chunks it has copied."""

    @property
    def moved_address(self) -> int:
        """Host address of the word by which the threads tell how many chunks they have moved."""

    @property
    def idle(self) -> bool:
        """Whether all copies by way of it are over, so that any queue may use it."""

    @property
    def worn(self) -> bool:
        """Whether its words have counted so far that a vendor which compares without wrapping (HIP) may soon err."""

    def rewind(self) -> None:
        """Count from 0 again. Only while it is idle."""

class StagedCopy:
    """One copy between pageable memory and a device. Keep it until its work in the queue is done.

    Parameters
    ----------
    ring : Ring
        All its earlier copies were submitted to the same queue, or are over.
    to_device : bool
        Direction.
    host, size : int
        The pageable range, in bytes.
    chunk_bytes : int
        Bytes of one block, a multiple of `PIECE_BYTES`.
    thread_count : int
        How many threads move pieces; counts at the first copy of the process.
    """

    ring: Ring
    base: int
    block_count: int
    chunk_bytes: int
    submitted: bool
    """Whether a queue has been told to call `began`; set by who told it."""
    def __init__(
        self, ring: Ring, to_device: bool, host: int, size: int, chunk_bytes: int, thread_count: int
    ) -> None: ...
    @property
    def chunks(self) -> int: ...
    def bytes(self, chunk: int) -> int:
        """Bytes of a chunk."""

    def block(self, chunk: int) -> int:
        """Host address of the block that a chunk goes through."""

    @property
    def began(self) -> int:
        """The C function, and `argument` its argument, that the queue must call first."""

    @property
    def argument(self) -> int: ...
    @property
    def over(self) -> bool:
        """Whether no thread will touch its memory any more."""

    def abandon(self) -> None:
        """Have no thread wait for the device any more, and block until none touches its memory."""

class LetGo:
    """When it is collected, no thread touches the pageable memory of a copy any more, even if its device is lost."""

    def __init__(self, copy: StagedCopy) -> None: ...

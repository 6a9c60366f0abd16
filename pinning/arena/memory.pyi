# SPDX-License-Identifier: Apache-2.0
"""The memory of an arena and its name, each with an owner from the first moment on."""

from os import PathLike

from pinning.map import Hold

class Segment:
    """Memory that processes share, perhaps under the name of a file, with a shared lock (flock) of it.

    Where it is the last that has one, `leave` and its destructor remove the name.
    """

    @staticmethod
    def unnamed(size: int, huge: bool = False) -> Segment:
        """New memory without a name (memfd), of the pool of huge pages if wanted."""

    @staticmethod
    def make(folder: PathLike[str], path: PathLike[str], size: int) -> Segment | None:
        """A new one, which has its name, its size and its lock in one step; None where the name is taken."""

    @staticmethod
    def join(path: PathLike[str], wait: bool = True) -> Segment | None:
        """The one of this name; None where there is none. Without `wait` also where somebody is about to remove it."""

    @property
    def made_here(self) -> bool: ...
    @property
    def abandoned(self) -> bool:
        """Whether nobody else had it when it was joined. Nobody can meanwhile: `take` it, `forget` it or `leave`."""

    def take(self) -> None:
        """Let others join what was abandoned."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def present(self) -> int:
        """Bytes that are in memory."""

    @property
    def has_name(self) -> bool:
        """Whether others can still find it."""

    def fileno(self) -> int: ...
    def forget(self) -> None:
        """Leave, and leave the name as it is."""

    def leave(self) -> None:
        """Give it up; the last one removes the name."""

    def in_child(self) -> None:
        """Have a lock of its own in a fork's child."""

class Memory:
    """Address space, and memory for the first bytes of it; with the locks of these, which go first.

    Parameters
    ----------
    maximum : int
        Bytes of address space, a multiple of `page`.
    aligned : int
        A power of two, of which its address is a multiple.
    segment : Segment or None
        Whose bytes it maps. Without one they are this process's alone, and a fork's child has none of them.
    page : int
        Bytes; of more than the system's pages for the pool of huge pages.
    advice : int
        For the kernel (madvise), or -1.
    """

    def __init__(self, maximum: int, aligned: int, segment: Segment | None, page: int, advice: int) -> None: ...
    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes that are memory."""

    @property
    def reserved(self) -> int: ...
    @property
    def page(self) -> int: ...
    @property
    def segment(self) -> Segment | None: ...
    @property
    def holds(self) -> list[Hold]:
        """Its locks."""

    @property
    def here(self) -> bool:
        """Whether this process has it."""

    def extend(self, upto: int) -> None:
        """Have memory for the first `upto` bytes; what is there stays. Raises OSError; then nothing has changed."""

    def unlock(self) -> None:
        """Give up its locks. Raises VendorError; then it can be called again."""

    def release(self) -> None:
        """Unlock it and give all back."""

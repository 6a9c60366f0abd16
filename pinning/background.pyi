# SPDX-License-Identifier: Apache-2.0
"""Locks that are taken in the background, found and used as far as they are."""

from collections.abc import Generator
from types import TracebackType
from typing import Any, Self, overload

from pinning.locks import Lock
from pinning.plugin import Device

class PendingLock:
    """A lock that is being taken in the background. Made by `lock_async`; a context manager, which cancels at the end.

    It can be awaited in any event loop of asyncio: ``lock = await pending``. To cancel the task that waits does not
    cancel the lock, and neither does Ctrl-C in `wait`.

    One that is dropped before it is done warns (ResourceWarning) and is undone. When the program exits, all that are
    left are undone. In a child process after fork it is not held: page locks stay with the parent.

    Attributes
    ----------
    host_ptr, size : int
        The bytes that are to be locked.
    device : Device
        Where.
    """

    @property
    def host_ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> Device: ...
    @property
    def done(self) -> bool:
        """Whether it is over, for better or worse; `wait` says which."""

    @property
    def progress(self) -> int:
        """Bytes from the start that are locked; 0 once it has failed or was cancelled."""

    @overload
    def wait(self, nbytes: None = None, timeout: float | None = None) -> Lock:
        """Wait until it is done, or until the first bytes are locked. Ctrl-C is heard, and the lock goes on.

        Parameters
        ----------
        nbytes : int, optional
            Only until so many bytes from the start are locked.
        timeout : float, optional
            Seconds.

        Returns
        -------
        Lock or None
            The lock, the same one each time: keep it, for dropping it unlocks. None where `nbytes` is given.

        Raises
        ------
        TimeoutError
            It takes longer; it goes on.
        PinningError
            It was cancelled, or this is a fork of the process that has begun it. Else as `lock`: InvalidRangeError,
            PartialOverlapError, StillLockedError, LockLimitError, VendorError. Nothing is locked then.
        """

    @overload
    def wait(self, nbytes: int, timeout: float | None = None) -> None: ...
    def cancel(self) -> None:
        """End it after the piece that is being locked, undo it, and wait for that; if it is done, unlock it.

        Where others hold locks in what is locked so far, that stays until the last of them is unlocked.

        Raises
        ------
        VendorError
            The vendor refused to unlock. If the lock was done it is still held, and this can be called again; else its
            region is half unlocked, and `pinning.unlock` of the buffer tries again.
        """

    def __await__(self) -> Generator[Any, None, Lock]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def lock_async(
    buffer: object,
    size: int | None = None,
    *,
    device: Device | str | None = None,
    read_only: bool | None = None,
    piece: int | None = None,
    unit: int | None = None,
    stall_ms: float | None = None,
    coherent: bool | None = None,
) -> PendingLock:
    """Lock a buffer's memory for a device in the background.

    What is not in memory is brought in by several threads, ahead of the lock. In pieces (`unit`, `stall_ms` or `piece`)
    what is locked so far is found and used by copies at once, a lock inside it is counted at once, and one beyond it
    waits for that much. Without them the lock is one vendor call, as any library may copy across the whole buffer; a
    GPU then stands still for about 25 ms a GiB.

    Locks of one device are taken one after another, in the order of these calls.

    Parameters
    ----------
    buffer, size, device, read_only, coherent
        As for `lock`.
    piece : int, optional
        Lock in pieces of so many bytes.
    unit : int, optional
        Bytes that are copied at a time by whoever copies, such as a block of a cache or a row, counted from the
        buffer's start. It is locked in pieces of whole units: no copy of a unit crosses a border, whoever makes it.
    stall_ms : float, optional
        How long a GPU may stand still for one piece, in milliseconds; 3 by default where `unit` is given. The size of
        the pieces follows from the time that each takes; it is a multiple of at least 16 MiB, or of `unit` if that is
        larger. Alone, it is for memory that only this package's copies go across.

    Returns
    -------
    PendingLock
        Keep it, until you have its `Lock`: dropping it undoes the lock.

    Raises
    ------
    TypeError, InvalidRangeError, PluginUnavailableError
        As `lock`. What else may go wrong is raised by whoever waits.
    PinningError
        The map is closed, or there is no thread to be had.
    """

def lock_unlisted(buffer: object, device: Device, unit: int | None, how: dict[str, Any]) -> PendingLock:
    """`lock_async` for who gives parts of the buffer to others: that these are locked is not due to a lock of theirs.

    Parameters
    ----------
    how : dict
        How pages are brought in: further arguments of `pinning.populate.Populating`.
    """

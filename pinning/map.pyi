# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Protocol, Self, SupportsIndex

class _Device(Protocol):
    def data_lock(self, ptr: int, size: int, read_only: bool | None, /) -> int: ...
    def data_unlock(self, ptr: int, /) -> None: ...
    def is_pinned_ptr(self, ptr: int, /) -> tuple[int, int, int] | None: ...

def watch_problem() -> str | None:
    """Why the kernel does not tell which memory leaves; None where it does."""

class Region:
    """A locked region, as it was when asked for.

    Attributes
    ----------
    start, end, size : int
        The half-open byte range ``[start, end)`` that is locked.
    whole : int
        Bytes from `start` that the map keeps for it: `size`, but more while a lock in pieces goes on, or where it was
        ended before its end because others had locked some of it.
    device_ptr : int
        Device-accessible address of `start`.
    piece : int
        Vendor calls have locked multiples of so many bytes; `size` when one call locked all.
    references : int
        Locks held. 0 for a registration that nobody has locked.
    external : bool
        Pinned by someone else, and so never unlocked by this map.
    registered : bool
        Entered by `PinnedMap.register`: external, and no lock keeps it there.
    idle : bool
        Given up by all and still registered with the vendor, see `pinning.budget`: no lookup shows it.
    coherent : bool or None
        Whether host and running kernel see each other's writes. None where nobody knows: the vendor promises nothing,
        or someone else has pinned it and the vendor has both kinds.
    device : Device
    """

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def whole(self) -> int: ...
    @property
    def device_ptr(self) -> int: ...
    @property
    def piece(self) -> int: ...
    @property
    def references(self) -> int: ...
    @property
    def external(self) -> bool: ...
    @property
    def registered(self) -> bool: ...
    @property
    def idle(self) -> bool: ...
    @property
    def coherent(self) -> bool | None: ...
    @property
    def device(self) -> Any: ...
    @property
    def borders(self) -> tuple[int, ...]:
        """Host addresses where one vendor registration may end and the next begin, which no single copy may cross.

        Those of the whole lock, also where it is not locked yet.
        """

    def in_one_piece(self, ptr: int, size: int) -> bool:
        """Whether ``[ptr, ptr + size)``, inside the region, crosses none of the `borders`."""

    def device_ptr_of(self, ptr: int) -> int:
        """The device-accessible address of host address `ptr`.

        Raises
        ------
        InvalidRangeError
            `ptr` is not in the region.
        """

    def __contains__(self, ptr: int) -> bool: ...
    def __hash__(self) -> int: ...

class PinnedMap:
    """The locked host memory of one device, counted.

    Lookups take no lock. The device is called without one: a slow call delays neither lookups nor the locks of other
    ranges, and threads that lock the same range at once make one call. After fork the child's map is empty.

    Parameters
    ----------
    device : object
        Anything with ``data_lock(ptr, size, read_only)``, ``data_unlock(ptr)`` and ``is_pinned_ptr(ptr)``, see
        `pinning.plugin.Device`. What these raise reaches the caller unchanged. With ``coherence``, see
        `pinning.plugin.CoarseDevice`, it says what locked memory can be.
    shared : bool
        Whether this is the map that native code of this process has under the device's name, see
        ``<pinning/pinning.h>``: only for a `pinning.plugin.native.NativeDevice`. It lives as long as the process, and
        `close` gives up the locks of Python's `Lock` handles alone.
    """

    def __init__(self, device: _Device, *, shared: bool = False) -> None: ...
    @property
    def device(self) -> Any: ...
    @property
    def closed(self) -> bool: ...
    @property
    def generation(self) -> int:
        """How many forks lie between this process and the one that made the map."""

    def lock(
        self,
        ptr: int,
        size: int,
        read_only: bool | None = None,
        *,
        piece: int | None = None,
        coherent: bool | None = None,
    ) -> int:
        """Count one more lock of ``[ptr, ptr + size)``, locking it first where no region holds it.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes, of any alignment.
        read_only : bool, optional
            Whether the mapping may be read only; None when not known.
        piece : int, optional
            Bytes that one vendor call may take.
        coherent : bool, optional
            Whether host and running kernel must see each other's writes. True: required. None: wherever the vendor has
            it. False: not needed, so that the lock is coarse-grained where the vendor has that.

        Returns
        -------
        int
            The device-accessible address of `ptr`.

        Raises
        ------
        InvalidRangeError
            Null, empty, negative or past the top of the address space.
        PartialOverlapError
            It shares bytes with a region of this map without lying inside it; nothing was locked. Or the device says
            that someone else has pinned a part of it.
        StillLockedError
            It overlaps a region that is half unlocked, because the device refused; unlock that again first. Or it is to
            be coherent, and lies in a region that is not, or of which nobody knows.
        PinningError
            The map is closed, the pieces' device pointers are not contiguous, or coherence is required of a device that
            does not promise it.

        What the device raises comes through as well. After any error nothing has changed, unless the device also
        refused to undo the pieces before the one that failed; these are then a half unlocked region.
        """

    def unlock(self, ptr: int) -> None:
        """Count one lock less of the region around `ptr`; the last one unlocks it.

        Raises
        ------
        NotLockedError
            No lock is held there.

        What the device raises comes through as well; the count is then as before, and `unlock` can be called again.
        """

    def lock_mapped(
        self, ptr: int, size: int, policy: Literal["off", "on", "mandatory"], read_only: bool | None = None
    ) -> int | None:
        """Lock a range that a runtime maps, as `policy` says; `pinning.lock_mapped` has the rules.

        Returns
        -------
        int or None
            The device-accessible address of `ptr`; None where it is not locked now.

        Raises
        ------
        InvalidRangeError
            Null, empty, negative or past the top of the address space.
        PinningError
            There is no such policy.

        With the policy "mandatory" also what `lock` raises.
        """

    def unlock_unmapped(self, ptr: int) -> None:
        """Undo one `lock_mapped` of `ptr`, if it locked anything. What the device raises comes through; try again."""

    def refresh(self) -> list[Region]:
        """Ask the device for each external region, and forget those that their owner has unpinned, even if locked.

        Registrations are not asked for. What the device raises comes through; then nothing has changed.

        Returns
        -------
        list of Region
            Those forgotten, as they were.
        """

    def undo_left(self) -> None:
        """Have the device unlock what was locked in memory that has left; returns once that is done.

        A thread does so soon; who hands memory to the vendor as pageable cannot wait for that.
        """

    def register(self, ptr: int, size: int, device_ptr: int) -> None:
        """Enter memory that its owner has pinned: found like any other, never unlocked by this map.

        Raises
        ------
        InvalidRangeError, PartialOverlapError
            As for `lock`; any byte that is in the map already is an overlap.
        StillLockedError
            It overlaps a region that is half unlocked.
        PinningError
            The map is closed.
        """

    def unregister(self, ptr: int) -> None:
        """Take back the `register` of the region around `ptr`.

        Raises
        ------
        NotLockedError
            No registered region holds `ptr`.
        StillLockedError
            Someone holds a lock in it; nothing has changed.
        """

    def hold_if_locked(self, ptr: int, size: int) -> Hold | None:
        """One more lock of a range that is locked already, or that someone else has pinned; None where it is neither.

        Of a region of others the vendor is asked whether it still is; one that is not leaves the map.

        Raises
        ------
        PartialOverlapError
            Only a part of the range is locked.
        """

    def find(self, ptr: SupportsIndex, size: SupportsIndex = 1) -> Region | None:
        """The region that holds every byte of ``[ptr, ptr + size)``; None when `size` is 0."""

    def overlapping(self, ptr: SupportsIndex, size: SupportsIndex, *, idle: bool = False) -> list[Region]:
        """The regions that share bytes with ``[ptr, ptr + size)``, or will once all of them is locked.

        In address order and disjoint; with those that are `idle` if that is asked for. One that comes or goes during
        the call is told perhaps.
        """

    def __contains__(self, ptr: SupportsIndex) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Region]:
        """All regions in address order, as `overlapping` tells of them."""

    def close(self, *, wait: bool = True) -> None:
        """Unlock everything, however often it is locked; the map then takes no more.

        Parameters
        ----------
        wait : bool
            Whether to wait for locks that other threads are in the middle of, or to leave them out.

        Raises
        ------
        Exception
            The first that the device raised. The other regions are unlocked; the map stays open.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def _after_fork_in_child(self) -> None: ...

class Hold:
    """One counted lock of a map, taken when made and given up by `unlock`, or when it is collected."""

    def __init__(
        self,
        map: PinnedMap,
        ptr: int,
        size: int,
        read_only: bool | None,
        piece: int | None,
        coherent: bool | None,
    ) -> None: ...
    @property
    def device_ptr(self) -> int: ...
    @property
    def held(self) -> bool:
        """Whether it has not been given up, and its region is still in the map."""
    def unlock(self) -> bool:
        """Give it up; False when that has been done, or is being done by another thread.

        Nothing is unlocked where its region has left the map, perhaps for another one at the same place.
        """

    def drop(self, owner: object) -> None:
        """Give it up from a destructor: now, or when the device call that this thread is in has ended.

        `owner`, of the memory, is kept until then.
        """

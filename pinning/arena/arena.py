# SPDX-License-Identifier: Apache-2.0
"""Large memory, locked once: allocated from without vendor calls, shared by name, and enlarged in place."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Generator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from pinning.arena.mapping import PAGE, HugePages, map_memory, up
from pinning.arena.memory import Memory
from pinning.arena.ready import Ready
from pinning.arena.space import ArenaAllocation, Space
from pinning.budget.checks import check_memory, check_room
from pinning.budget.limits import check_budget
from pinning.errors import (
    ArgumentError,
    InvalidRangeError,
    LockLimitError,
    NotLockedError,
    PinningError,
    PoolLimitError,
    StillInUseError,
    StillLockedError,
)
from pinning.locking.devices import default_device, pinned_map, pinned_maps, separate
from pinning.locking.devices import device as device_of_name
from pinning.machine import numa
from pinning.plugin import Device
from pinning.runtime.arguments import byte_count, describe, flag, integer, seconds
from pinning.runtime.handles import refuse_closed
from pinning.runtime.process import WeakRegistry, at_exit, at_fork, defer, run_deferred

_CACHE_LINE = 64
_STEP = 2 << 20  # bytes; the smallest automatic growth


class Arena(Space):
    """Host memory of an exact size that is locked once, in the background, starting when the arena is made.

    Allocations in it are already locked: a lock, a lookup or a copy inside it makes no vendor call to pin. A context
    manager, which closes it at the end. It is a writable buffer of all its bytes, also for NumPy, DLPack and
    ``torch.frombuffer``.

    An arena that is dropped without being closed warns (ResourceWarning) and is closed soon afterwards. In a forked
    child, an arena without `name` and `shared` is not mapped; any other is mapped, but not locked.

    Parameters
    ----------
    nbytes : int
        The size. Only the mapping is rounded up, to whole pages.
    devices : Device, str, or several, optional
        The devices for which it is locked; by default the default device; none if empty.
    unit : int, optional
        Bytes that are copied at a time, such as a block of a cache. The arena is then locked in small pieces, whose
        borders lie at multiples of `unit`, so that a GPU stalls for at most 3 ms and no copy of a unit crosses a
        border. Allocations begin at such multiples, counted from the start of the arena, its `part` or the growth.
    name : str, optional
        The name of memory that processes share: the first process creates it, the others join. It is removed when the
        last one has closed it or has ended.
    numa_node : int, optional
        The NUMA node for its pages; by default the one near the first device, if known.
    huge_pages : {None, True, False, "hugetlb", "try"}
        None: if the system provides them. True: required. False: none. ``"hugetlb"``: from the pool that the
        administrator has reserved; ``"try"``: from that pool, or otherwise as None.
    grow : int, optional
        The size up to which `grow` and `allocate` may enlarge it. This reserves address space, not memory.
    shared : bool
        Whether it is shared, without a name, with forked children and with processes that receive its `fileno`.
    create : bool, optional
        True: the name must be new. False: the name must exist; an arena left behind by killed processes is taken over
        with its contents. None: joined, or created, also in place of one that was left behind.
    part : slice, optional
        The bytes of a shared arena that this process locks and allocates from; by default all.

    Raises
    ------
    InvalidRangeError
        A size below 1, or another than the name is in use with; a node that does not exist; a part outside it.
    ArgumentError
        An invalid name, `huge_pages` or device, or `create` or `part` without a name.
    LockLimitError
        The memory, the control group, a limit on locks, the file system of shared memory or the pool of huge pages has
        not enough left. The message has the figures. No page has been touched.
    PinningError
        Such huge pages are not available; the name is taken, or does not exist.
    PluginUnavailableError
        There is no such device.

    Attributes
    ----------
    nbytes : int
    ptr : int
        The host's address of the first byte.
    name : str or None
    devices : tuple of Device
    unit : int or None
    part : slice
        The bytes of this process.
    made : bool
        Whether this call created the memory, which is then zero. Otherwise others may have written to it.
    allocated, available, largest_available : int
        Bytes in allocations, bytes left, and the size of the largest possible allocation.

    Examples
    --------
    >>> with pinning.Arena(20000, devices="host") as arena:
    ...     block = arena.allocate(8000)
    ...     array = block.asarray((1000,), "f8")
    ...     array[:] = 1
    ...     arena.wait()
    ...     print(pinning.is_locked(array, device="host"))
    ...     del array
    ...     block.free()
    True
    """

    _memory: Memory | None = None
    _ending = False

    def __init__(
        self,
        nbytes: int,
        devices: Device | str | Iterable[Device | str] | None = None,
        unit: int | None = None,
        name: str | None = None,
        numa_node: int | None = None,
        huge_pages: HugePages = None,
        grow: int | None = None,
        *,
        shared: bool = False,
        create: bool | None = None,
        part: slice | None = None,
    ) -> None:
        if self._memory is not None:
            raise TypeError("an Arena cannot be initialized again")
        size = byte_count(nbytes)
        self.maximum: int = size if grow is None else byte_count(grow, "grow")
        if self.maximum < size:
            raise InvalidRangeError(
                f"grow is {grow}; the size up to which the arena may grow must be at least nbytes, {size}"
            )
        if name is not None and self.maximum > size:
            raise PinningError(
                f"an arena with a name cannot grow, because other processes rely on its size, {size}: leave out grow"
            )
        if name is None and create is not None:
            raise ArgumentError("create is for arenas with a name, which processes share: give name=")
        if part is not None and name is None:
            raise ArgumentError("part is for arenas with a name, which processes share: give name=")
        flag(shared, "shared")
        if create is not None:
            flag(create, "create")
        self.name = name
        self.devices: tuple[Device, ...] = _devices(devices)
        self.unit: int | None = None if unit is None else byte_count(unit, "unit")
        self.part: slice = _part(part, size)
        self._whole_is_ours = part is None
        self._huge_pages = huge_pages is not False
        self.numa_node: int | None = _node(numa_node, self.devices)
        self._home = self.devices[0] if self.devices else device_of_name("host")
        self._parts: list[Ready] = []
        first, last = self.part.start, self.part.stop
        for each in self.devices:
            check_room(last - first, each)
        run_deferred()  # dropped objects may hold memory, or the name
        memory = map_memory(
            size, self.maximum, last - first, name=name, shared=shared, create=create, huge_pages=huge_pages
        )
        self._segment = memory.segment
        self.made: bool = memory.segment is None or memory.segment.made_here
        self._begin(memory, size, self.unit or 0)
        self._memory = memory
        _living.add(self)
        self._alone(self._add, first, last - first)

    # ---- locking ----

    def _add(self, start: int, size: int) -> None:
        """Lock bytes and make them allocatable. If it is interrupted after any step, the next call continues."""
        assert self._memory is not None
        cpus = numa.usable_cpus(self.numa_node)
        self._parts.append(Ready(self._memory, start, size, self.devices, self.unit, cpus, self._huge_pages))
        try:
            self._settle()
        except PinningError:  # no thread can be started
            self._parts.pop()
            raise

    def _settle(self) -> None:
        for each in self._parts:
            each.begin()
            self._give(each.start, each.size)

    def _resume(self) -> None:
        """Continue the locking that an unsuccessful `close` has stopped."""
        if self._ending or self.closed:
            return
        assert self._memory is not None
        for each in self._parts:
            if each.stopped:
                each.over.wait()
        self._memory.undo()
        self._parts = [each.again() for each in self._parts]
        self._settle()

    def done(self) -> bool:
        """Whether locking has ended, with or without success; `wait` raises the error."""
        return all(each.over.is_set() for each in list(self._parts))

    @property
    def progress(self) -> int:
        """Bytes that are locked for all devices. With a `unit` these grow by pieces, each usable immediately."""
        return 0 if self.closed else sum(each.progress for each in list(self._parts))

    def wait(self, nbytes: int | None = None, timeout: float | None = None) -> None:
        """Wait until the arena is locked; ``await arena`` does that in asyncio.

        Parameters
        ----------
        nbytes : int, optional
            Wait only for the first `nbytes` bytes of this process's part; by default for all.
        timeout : float, optional
            Seconds.

        Raises
        ------
        InvalidRangeError
            It has fewer than `nbytes` bytes.
        PinningError
            It is closed.
        TimeoutError
            It takes longer.
        LockLimitError
            Memory ran out, or the file system of a named arena is full.
        VendorError
            The vendor refused.

        After the last two, the initial size or growth concerned is not locked at all; its memory can still be used.
        """
        patience = seconds(timeout)
        end = None if patience is None else time.monotonic() + patience
        if self._is_parents:
            raise NotLockedError(f"{self!r} is not locked in a fork of the process that made it, process {os.getpid()}")
        self._check()
        upto = sys.maxsize if nbytes is None else self.part.start + byte_count(nbytes, least=0, most=self._own_bytes())
        while not self._waited(upto, end, timeout):
            if _ended:
                raise PinningError(f"{self!r} is not locked any more, because the program ends")
            self._alone(self._resume)  # once the `close` is over, unless that has resumed the locking
            self._check()

    def _waited(self, upto: int, end: float | None, timeout: float | None) -> bool:
        """`wait`; False if a `close` has stopped the locking."""
        for each in list(self._parts):
            if each.start >= upto:
                break
            left = None if end is None else max(end - time.monotonic(), 0)
            if not each.wait(min(upto - each.start, each.size), left):
                raise TimeoutError(f"{self.progress} bytes of {self!r} are locked after {timeout} s")
            if each.error is not None:
                raise each.error
        return not any(each.stopped and not each.locked for each in list(self._parts))

    def __await__(self) -> Generator[Any, None, None]:
        import asyncio  # imported already: its loop runs this

        self.wait(0)
        while not self.done():
            yield from asyncio.sleep(0.01).__await__()
        self.wait()

    def device_ptr_of(self, ptr: int, size: int = 1, device: Device | str | None = None) -> int:
        """The device address of bytes of the arena. Waits until they are locked.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes, inside the arena.
        device : Device or str, optional
            One of its devices; the first by default.

        Raises
        ------
        NotLockedError
            They are not locked for that device.
        """
        self._check()
        last = integer(ptr, "ptr", "an address") + byte_count(size, "size") - self.ptr
        self.wait(min(max(last - self.part.start, 0), self._own_bytes()))
        if self.devices or device is not None:
            region = pinned_map(self.devices[0] if device is None else device).find(ptr, size)
            if region is not None:
                return region.device_ptr_of(ptr)
        raise NotLockedError(f"[{ptr:#x}, {ptr + size:#x}) of {self!r} is not locked for {device or 'any device'}")

    # ---- memory ----

    def allocate(self, nbytes: int, alignment: int | None = None) -> ArenaAllocation:
        """Allocate bytes of the arena, without a vendor call. The arena grows if that is necessary and allowed.

        Parameters
        ----------
        nbytes : int
            At least 1; the exact size of the allocation.
        alignment : int, optional
            A power of two; the address is a multiple of it. By default 64 or, with a `unit`, a multiple of the unit,
            counted from the start of the arena, its `part` or the growth.

        Returns
        -------
        ArenaAllocation
            Keep it: dropping it frees it.

        Raises
        ------
        InvalidRangeError
            A size below 1, or an alignment that is no power of two.
        PoolLimitError
            No free block is large enough; the message has the figures.
        PinningError
            It is closed. Or in a forked child, or in a process that joined a segment without a `part` of its own, where
            the allocations of other processes are not known.
        """
        size = byte_count(nbytes)
        if not self.made and self._whole_is_ours:
            raise PinningError(
                f"{self!r} joined a segment that another arena made, whose allocations are not known here: make it "
                "with a part= of its own, or use asarray with an offset"
            )
        run_deferred()  # frees dropped allocations
        while True:
            end = self.nbytes  # first: what another thread adds from now on may be enough
            found = self._take(size, alignment, self._home)
            if found is not None:
                return found
            self._grow_for(size, alignment, end)

    def free(self, allocation: ArenaAllocation) -> None:
        """Free an allocation of this arena; see `ArenaAllocation.free`.

        Parameters
        ----------
        allocation : ArenaAllocation
            What `allocate` has returned.
        """
        if not isinstance(allocation, ArenaAllocation):
            raise TypeError(f"allocation is {describe(allocation)}; it must be what `allocate` has returned")
        if allocation.arena is not self:
            raise InvalidRangeError(f"{allocation!r} is not of {self!r}: free it in its own arena")
        allocation.free()

    def grow(self, nbytes: int) -> None:
        """Enlarge the arena in place; the added bytes are locked in the background, as a separate region.

        Parameters
        ----------
        nbytes : int
            The number of bytes to add.

        Raises
        ------
        PoolLimitError
            The arena may not grow that far: see the parameter `grow`.
        LockLimitError
            There is no room. Nothing has changed.
        """
        self._grow(byte_count(nbytes))

    def _grow(self, more: int, end: int | None = None) -> None:
        """Grow by `more` bytes, unless the arena no longer ends at `end`."""
        self._check()
        memory = self._memory
        assert memory is not None
        now = self.nbytes
        if end not in (None, now):
            return
        if now + more > self.maximum:
            bound, larger = f"{self!r} over its maximum of {self.maximum}", "grow=" if self.name is None else "nbytes"
            if not self._whole_is_ours:
                bound, larger = f"this process's part of {self!r} over its {self._own_bytes()} bytes", "part="
            raise PoolLimitError(
                f"{more} bytes more would take {bound}; {self.available} are free, at most {self.largest_available} in "
                f"one piece: free some, or make it with a larger {larger}"
            )
        for each in self.devices:
            check_room(more, each)
        if memory.page == PAGE:
            check_memory(more)
        if self.devices:
            check_budget(more * len(separate(map(pinned_map, self.devices))))
        self._alone(self._extend, memory, more, end)

    def _extend(self, memory: Memory, more: int, end: int | None) -> None:
        self._check()
        self._settle()
        if end is not None and end != self.nbytes:
            return
        start = self.nbytes
        if start + more > self.maximum:
            raise PoolLimitError(f"{self!r} has grown meanwhile, and {more} bytes more are over its maximum")
        upto = up(start + more, memory.page)
        if upto > memory.size:
            try:
                memory.extend(upto)
            except OSError as error:
                raise LockLimitError(f"the kernel refuses {more} bytes more for {self!r}: {error}") from error
        self._add(start, more)

    def _grow_for(self, size: int, alignment: int | None, end: int) -> None:
        """Grow so that an allocation fits after `end`, unless the arena no longer ends there."""
        step = alignment or (1 if self.unit else _CACHE_LINE)  # units are counted from `end`
        needed = -(self.ptr + end) % step + size
        more = max(needed, min(_STEP, self.maximum - end))
        try:
            self._grow(more, end)
        except LockLimitError:
            if more == needed:
                raise
            self._grow(needed, end)

    def placement(self) -> dict[int, int]:
        """Bytes of this process's part on each NUMA node of the machine, estimated by samples.

        Empty if nothing is in memory yet, or if the kernel does not report it, as in some containers.
        """
        self._check()
        return numa.placement(self.ptr + self.part.start, self._own_bytes())

    def fileno(self) -> int:
        """The descriptor of its memory, which another process can map.

        Raises
        ------
        PinningError
            It is not shared.
        """
        self._check()
        if self._segment is None:
            raise PinningError(f"{self!r} is not shared: make it with shared=True or a name")
        return self._segment.fileno()

    def _own_bytes(self) -> int:
        """How many bytes this process's part has."""
        return int((self.nbytes if self._whole_is_ours else self.part.stop) - self.part.start)

    # ---- the end ----

    @property
    def closed(self) -> bool:
        """Whether its memory is unmapped, or not mapped in this process."""
        return self._memory is None or not self._memory.here

    def close(self) -> None:
        """Unlock the arena and free its memory. A second call does nothing.

        Raises
        ------
        StillInUseError
            Something is allocated in it, or a buffer of its bytes is exported. Nothing has changed.
        StillLockedError
            Another lock in it is held. Nothing has changed.
        VendorError
            The vendor refused to unlock it; call it again.
        """
        run_deferred()  # frees dropped allocations
        self._close()

    def _close(self) -> None:
        self._alone(self._end)

    def _end(self) -> None:
        memory = self._memory
        if memory is None or self.closed:
            return
        self._claim()  # from now on nothing is allocated or exported
        try:
            if not self._ending:
                memory.undo()
                self._check_unlocked()  # first, so that a refusal has changed nothing
            for each in self._parts:
                each.stop()
            for each in self._parts:
                each.over.wait()
            if not self._ending:
                memory.undo()
                self._check_unlocked()
                self._ending = True
        except BaseException:
            if not self._ending:
                self._unclaim()
                if not memory.refused:  # otherwise `wait` resumes, once the vendor has undone them
                    self._resume()
            raise
        memory.release()

    def _check_unlocked(self) -> None:
        """Raise StillLockedError if a lock in it is held besides the arena's own."""
        assert self._memory is not None
        ptr = self._memory.ptr
        for locked in separate(pinned_maps()):
            own = sum(pinned_map(device)._domain == locked._domain for device in self.devices)
            for region in locked.overlapping(ptr, self.nbytes):
                if region.references > own * self._holds(region.start - ptr):
                    raise StillLockedError(f"there is a lock in {self!r}, by {region!r}: unlock that first")

    def _holds(self, offset: int) -> int:
        """The most locks that the arena itself may have at `offset`, or at its part's start if that is higher."""
        at = max(offset, self.part.start)
        for each in self._parts:
            if each.start <= at < each.start + each.size:
                return int(each.locked or not each.over.is_set())
        return 0

    def __enter__(self) -> Self:
        refuse_closed(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(StillInUseError, StillLockedError):  # the first error is raised; dropping the arena closes it
            self.close()

    def __del__(self) -> None:
        if _ended or self.closed:
            return
        try:
            warnings.warn(f"{self!r} was dropped; close it, or use `with`", ResourceWarning, stacklevel=1, source=self)
        finally:
            defer(self._close)  # not here: the garbage collector may run this at any point

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        state = ", closed" if self.closed else "" if self.done() else ", being locked"
        where = ", ".join(each.name for each in self.devices) or "no device"
        return f"<Arena{name} of {self.nbytes} bytes, for {where}{state}>"

    def _in_child(self) -> None:
        self._parts = []  # their threads exist only in the parent
        self._alone_in_child()
        if self._segment is not None:
            self._segment.in_child()

    def _at_exit(self) -> None:
        for each in self._parts:
            each.stop()
        if self._segment is not None:
            self._segment.leave()


def _devices(given: Device | str | Iterable[Device | str] | None) -> tuple[Device, ...]:
    if given is None:
        return (default_device(),)
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    found = [device_of_name(each) for each in several]
    return tuple({each.name: each for each in found}.values())


def _part(given: slice | None, size: int) -> slice:
    if given is None:
        return slice(0, size)
    if not isinstance(given, slice):
        raise TypeError(f"part is {describe(given)}; it must be a slice of its bytes")
    first = 0 if given.start is None else integer(given.start, "the start of part")
    last = size if given.stop is None else integer(given.stop, "the end of part")
    if given.step not in (None, 1) or not 0 <= first < last <= size:
        raise InvalidRangeError(f"part is {given}; it must be a contiguous part of the bytes 0 to {size}")
    return slice(first, last)


def _node(given: int | None, devices: tuple[Device, ...]) -> int | None:
    if given is None:
        return numa.node_of(devices[0]) if devices else None
    there = numa.nodes()
    node = integer(given, "numa_node", "a node's number")
    if node not in there:
        nodes = ", ".join(map(str, there)) or "none"
        raise InvalidRangeError(f"numa_node is {node}; it must be one of this machine's nodes: {nodes}")
    return node


_EXIT_SECONDS = 60
_living: WeakRegistry[Arena] = WeakRegistry()
_ended = False


def _in_child() -> None:
    for arena in _living:
        arena._in_child()


def _at_exit() -> None:
    global _ended
    _ended = True
    living = list(_living)
    for arena in living:
        arena._at_exit()
    until = time.monotonic() + _EXIT_SECONDS
    for arena in living:  # their threads undo the locks
        for each in arena._parts:
            each.over.wait(until - time.monotonic())


at_fork(_in_child)
at_exit(_at_exit)

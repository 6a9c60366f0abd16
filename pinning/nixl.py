# SPDX-License-Identifier: Apache-2.0
"""NIXL agents with which all host memory that a map locks is registered.

    memory = pinning.nixl.AgentMemory(agent)    # a nixl_agent
    with memory.lock(tensors) as locked:        # each allocation locked and registered once, however many views
        agent.initialize_xfer("WRITE", locked.descs(), there, "peer")

NIXL is not imported: the caller provides the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, NoReturn, Self

import numpy
from numpy.typing import ArrayLike, NDArray

from pinning.errors import InvalidRangeError, NotLockedError, PinningError
from pinning.interop.memory_of import host_buffer
from pinning.locking.devices import pinned_map
from pinning.locking.lock import lock as lock_buffer
from pinning.map.pinned_map import PinnedMap
from pinning.plugin import Device
from pinning.runtime.arguments import byte_count, describe
from pinning.runtime.buffers import Buffer
from pinning.runtime.handles import refuse_copy

__all__ = ["AgentMemory", "Locked"]

Rows = NDArray[numpy.uint64]


class Locked:
    """Buffers that are locked and registered with the agent, until `unlock` or the end of a ``with`` block.

    Attributes
    ----------
    memory : AgentMemory
    rows : numpy.ndarray
        Of shape (buffers, 3), uint64: address, bytes and device id of each buffer, in the order given.
    allocations : int
        The number of locks taken.
    """

    def __init__(self, memory: AgentMemory, rows: Rows, locks: ExitStack, allocations: int) -> None:
        self.memory: AgentMemory = memory
        self.rows: Rows = rows
        self.allocations: int = allocations
        self._locks = locks

    def descs(self) -> Any:
        """The agent's descriptor list of all the buffers, for a transfer."""
        return self.memory.agent.get_xfer_descs(self.rows, self.memory.mem_type)

    def unlock(self) -> None:
        """Release the locks. A second call does nothing."""
        self._locks.close()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it stands for its locks; lock the buffers once more")

    def __repr__(self) -> str:
        return f"<Locked {len(self.rows)} buffers by {self.allocations} locks, of {self.memory!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.unlock()


class AgentMemory:
    """Registers all memory that a map locks with a NIXL agent: each region from its first lock to its last unlock.

    Parameters
    ----------
    agent : nixl_agent
        Or an object with its methods `register_memory`, `deregister_memory` and `get_xfer_descs`. Threads that lock
        concurrently call them concurrently.
    device : Device or str, optional
        The device of the map; by default the default device.
    mem_type : str
        The agent's name for host memory.
    backends : sequence of str
        The agent's backends to register with; if empty, all that accept such memory.
    device_id : int
        The third column of descriptors.
    piece : int, optional
        The most bytes that one call registers: some network cards are slower above 4 GiB. A range that crosses a border
        then becomes several descriptors. Borders are counted from the start of a region, so both sides must be divided
        alike.

    Attributes
    ----------
    agent : nixl_agent
    mem_type : str
    map : PinnedMap

    Raises
    ------
    RegistrarError
        The agent refuses memory that is already locked.
    """

    def __init__(
        self,
        agent: Any,
        device: Device | str | None = None,
        *,
        mem_type: str = "DRAM",
        backends: Sequence[str] = (),
        device_id: int = 0,
        piece: int | None = None,
    ) -> None:
        for method in ("register_memory", "deregister_memory", "get_xfer_descs"):
            if not callable(getattr(agent, method, None)):
                raise TypeError(f"agent is {describe(agent)}, which has no {method}; give a nixl_agent")
        self.agent: Any = agent
        self.mem_type: str = mem_type
        self.map: PinnedMap = pinned_map(device)
        self._backends, self._device_id = list(backends), device_id
        name = f"NIXL agent {getattr(agent, 'name', '')}".rstrip()
        self._closed, self._piece = False, None if piece is None else byte_count(piece, "piece")
        self._registrar = self.map.add_registrar(self._register, self._unregister, name=name, piece=piece)

    def _register(self, ptr: int, size: int) -> object:
        rows = numpy.array([[ptr, size, self._device_id]], numpy.uint64)
        return self.agent.register_memory(rows, self.mem_type, self._backends)

    def _unregister(self, descs: object) -> None:
        self.agent.deregister_memory(descs, self._backends)

    def lock(self, buffers: Iterable[Buffer]) -> Locked:
        """Lock buffers, which registers them. For all views of one allocation, the allocation is locked, once.

        Parameters
        ----------
        buffers : iterable
            NumPy arrays, CPU tensors, and anything else that `pinning.lock` takes. If the allocation of a buffer is
            not known, the buffer itself is locked; ranges that overlap are locked as one.

        Returns
        -------
        Locked
            With their descriptors.

        Raises
        ------
        NotLockedError
            Another library has pinned some of it, so the map does not register it.
        Exception
            What `pinning.lock` raises. After any error none of them is locked.
        """
        if self._closed:
            raise PinningError(f"{self!r} no longer registers anything; make another")
        if not isinstance(buffers, Iterable) or hasattr(buffers, "__array_interface__") or hasattr(buffers, "data_ptr"):
            raise TypeError(f"buffers is {describe(buffers)}; it must be a list of buffers, or of one")
        kept = list(buffers)
        rows, allocations = _allocations(kept)
        with ExitStack() as locks:
            locks.callback(kept.clear)  # called last, after everything is unlocked
            for each in allocations:
                locks.enter_context(lock_buffer(each.buffer, device=self.map.device))
            return Locked(self, self.rows(rows[:, 0], rows[:, 1]), locks.pop_all(), len(allocations))

    def rows(self, addresses: ArrayLike, sizes: ArrayLike) -> Rows:
        """Descriptors of registered ranges, such as the blocks of a cache.

        Parameters
        ----------
        addresses : array_like of int
            The address of each range.
        sizes : array_like of int
            Bytes of each range, or one number for all.

        Returns
        -------
        numpy.ndarray
            Of shape (ranges, 3), uint64: address, bytes, device id; for `get_xfer_descs` of the agent.

        Raises
        ------
        NotLockedError
            A range does not lie entirely in one registered region; the message names it.
        InvalidRangeError
            A range is empty, or the number of sizes does not match that of addresses.
        """
        starts = numpy.asarray(addresses, numpy.uint64).reshape(-1)
        lengths = numpy.asarray(sizes, numpy.uint64)
        if lengths.ndim and lengths.shape != starts.shape:
            raise InvalidRangeError(f"{starts.size} addresses have {lengths.size} sizes; give one size, or as many")
        rows = numpy.empty((starts.size, 2), numpy.uint64)
        rows[:, 0], rows[:, 1] = starts, lengths
        if not rows[:, 1].all():
            raise InvalidRangeError(f"range {int(rows[:, 1].argmin())} has 0 bytes; each needs at least one")
        known = self._regions()
        index = numpy.searchsorted(known[:, 0], starts, "right").astype(numpy.int64) - 1
        inside = index >= 0
        offset = starts[inside] - known[index[inside], 0]
        room = known[index[inside], 1]
        inside[inside] = (offset < room) & (rows[inside, 1] <= room - offset)
        if not inside.all():
            first = int(inside.argmin())
            ptr, size = map(int, rows[first])
            raise NotLockedError(
                f"range {first}, [{ptr:#x}, {ptr + size:#x}), is in no memory that {self._registrar.name} knows of: "
                "lock it first, as a whole; what others have pinned is for them to register"
            )
        return self._with_ids(self._cut(rows, known[index, 0]))

    @property
    def registered(self) -> Rows:
        """The ranges registered by this object, as rows of address, bytes and device id, ascending."""
        known = self._regions()
        return self._with_ids(self._cut(known, known[:, 0]))

    def _regions(self) -> Rows:
        regions = [(each.start, each.size) for each in self.map if not each.external and each.size == each.whole]
        return numpy.array(regions, numpy.uint64).reshape(-1, 2)

    def _cut(self, rows: Rows, bases: Rows) -> Rows:
        """Rows, split at the borders of pieces, which are counted from `bases`."""
        if self._piece is None:
            return rows
        piece = numpy.uint64(self._piece)
        first, ends = (rows[:, 0] - bases) // piece, rows[:, 0] + rows[:, 1]
        counts = ((ends - bases - numpy.uint64(1)) // piece - first + numpy.uint64(1)).astype(numpy.int64)
        of = numpy.repeat(numpy.arange(len(rows)), counts)
        within = numpy.arange(len(of)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        borders = bases[of] + (first[of] + within.astype(numpy.uint64)) * piece
        starts = numpy.maximum(rows[of, 0], borders)
        return numpy.stack([starts, numpy.minimum(ends[of] - starts, borders + piece - starts)], axis=1)

    def close(self) -> None:
        """Deregister everything; locked memory stays locked. A second call does nothing."""
        self._closed = True
        self._registrar.remove()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "make one where it is needed")

    def __repr__(self) -> str:
        return f"<AgentMemory of {self._registrar.name}, {self.map!r}{', closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _with_ids(self, rows: Rows) -> Rows:
        ids = numpy.full((len(rows), 1), self._device_id, numpy.uint64)
        return numpy.hstack([rows, ids])


class _Allocation(NamedTuple):
    start: int
    size: int
    buffer: Buffer


def _allocations(buffers: list[Buffer]) -> tuple[Rows, list[_Allocation]]:
    """Address and size of each buffer, and the allocations to lock: ascending, none overlapping."""
    spans: list[tuple[int, int]] = []
    found: dict[tuple[int, int], _Allocation] = {}
    roots: dict[int, _Allocation | None] = {}  # by the root's id
    for buffer in buffers:
        ptr, size = span = _span(buffer)
        spans.append(span)
        root = _root(buffer)
        if id(root) not in roots:
            roots[id(root)] = _whole(root)
        whole = roots[id(root)]
        if whole is None or not (whole.start <= ptr and ptr + size <= whole.start + whole.size):
            whole = _Allocation(ptr, size, buffer)
        found.setdefault((whole.start, whole.size), whole)
    merged: list[_Allocation] = []
    for each in sorted(found.values(), key=lambda each: (each.start, -each.size)):
        last = merged[-1] if merged else None
        if last is None or each.start >= last.start + last.size:
            merged.append(each)
        elif each.start + each.size > last.start + last.size:
            size = each.start + each.size - last.start
            merged[-1] = _Allocation(last.start, size, (last.start, size))
    return numpy.array(spans, numpy.uint64).reshape(-1, 2), merged


def _span(buffer: Buffer) -> tuple[int, int]:
    if type(buffer) is numpy.ndarray and buffer.flags.c_contiguous and buffer.nbytes:
        return buffer.__array_interface__["data"][0], buffer.nbytes
    view = host_buffer(buffer)
    return view.ptr, view.size


def _root(buffer: object) -> object:
    while isinstance(buffer, numpy.ndarray) and isinstance(buffer.base, numpy.ndarray):
        buffer = buffer.base
    return buffer


def _whole(buffer: Any) -> _Allocation | None:
    """The allocation that contains a buffer; None if unknown."""
    if isinstance(buffer, numpy.ndarray):
        owner: Any
        for owner in (buffer.base, buffer):
            try:
                view = host_buffer(owner)
            except (TypeError, PinningError):  # a base that is not a buffer, or exports none
                continue
            return _Allocation(view.ptr, view.size, owner)
    elif callable(storage_of := getattr(buffer, "untyped_storage", None)):  # a tensor of torch
        storage = storage_of()
        ptr, size = storage.data_ptr(), storage.nbytes()
        return _Allocation(ptr, size, (ptr, size))
    return None

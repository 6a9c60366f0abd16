# SPDX-License-Identifier: Apache-2.0
"""Tensors from safetensors files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from pinning.copies.links import DIVIDED_FROM, LARGEST_BLOCK, Rounds, ways_of
from pinning.errors import ArgumentError, FileError, FileFormatError, InvalidRangeError, PinningError
from pinning.files.columns import Cutter, take_columns
from pinning.files.copy import is_host
from pinning.files.divided import FileParts
from pinning.files.file_work import OpenFile, copy_of, copy_parts
from pinning.files.frameworks import DLPackTensor, Framework, framework_of
from pinning.files.header import TensorInfo, length_of, parse
from pinning.files.order import wait_for_saves
from pinning.files.shards import AnyPaths, find_shards
from pinning.files.slices import Piece, Plan, check_plan, pieces_of
from pinning.locking.devices import default_device
from pinning.locking.devices import device as device_of_name
from pinning.plugin import Device, MemoryConnection, MemoryDevice, VendorQueue
from pinning.queues import Event, Queue, as_queue, default_queue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pinning.arrays import DeviceArray
    from pinning.files.of_torch import Tensor

_ALIGNMENT = 16  # bytes; of every tensor
_SMALL = 64 << 10  # bytes; shorter ranges are read through the page cache, with the bytes between them


@overload
def load_file(
    path: AnyPaths,
    device: Device | str | None = None,
    queue: Queue | object | None = None,
    *,
    slices: Plan | None = None,
    framework: Literal["numpy"],
) -> dict[str, NDArray[Any]]: ...
@overload
def load_file(
    path: AnyPaths,
    device: Device | str | None = None,
    queue: Queue | object | None = None,
    *,
    slices: Plan | None = None,
    framework: Literal["torch"],
) -> dict[str, Tensor]: ...
@overload
def load_file(
    path: AnyPaths,
    device: Device | str | None = None,
    queue: Queue | object | None = None,
    *,
    slices: Plan | None = None,
    framework: Literal["pinning"],
) -> dict[str, DeviceArray]: ...
@overload
def load_file(
    path: AnyPaths,
    device: Device | str | None = None,
    queue: Queue | object | None = None,
    *,
    slices: Plan | None = None,
    framework: Literal["dlpack"],
) -> dict[str, DLPackTensor]: ...
@overload
def load_file(
    path: AnyPaths,
    device: Device | str | None = None,
    queue: Queue | object | None = None,
    *,
    slices: Plan | None = None,
    framework: str | None = None,
) -> dict[str, Any]: ...
@overload
def load_file(
    path: AnyPaths, device: Mapping[Any, Plan | None], *, framework: str | None = None
) -> dict[Any, dict[str, Any]]: ...
def load_file(
    path: AnyPaths,
    device: Device | str | Mapping[Any, Plan | None] | None = None,
    queue: Queue | object | None = None,
    *,
    slices: Plan | None = None,
    framework: str | None = None,
) -> dict[Any, Any]:
    """Load the tensors of safetensors files, or slices of them, into memory of a device, or of several.

    Threads read all files, as one stream, directly into pinned blocks, from where the device copies: no other host
    memory is used. Data that is not in the page cache is read with O_DIRECT, if the file system allows that. All
    headers are checked before anything is allocated. Only the bytes of the slices are read.

    Parameters
    ----------
    path : path-like, or iterable of path-like
        Files; a folder of files ``*.safetensors``; an index ``*.safetensors.index.json``, or a folder with one. A file
        that is named twice is loaded once; one that is being saved in the background, once that save is over.
    device : Device or str, or mapping of these to plans, optional
        Such as ``"cuda:0"`` or ``"host"``, or torch's name for it (``"cpu"``, ``torch.device("cuda")``). By default
        that of `queue`, or the default device. A mapping loads to several devices, each with its plan (see `slices`).
        Bytes that several need are read once, and copied between devices that reach each other.
    queue : Queue or object with ``__cuda_stream__``, optional
        The queue for the copies; by default the device's default queue.
    slices : mapping of str to slice, or callable, optional
        What to load of each tensor: ``...`` for all of it; a slice of one dimension, such as ``numpy.s_[:, 2:4]``; None
        for nothing; or a function of the tensor's name, shape and dtype (such as ``"BF16"``) that returns one of all
        these, like the one of `pinning.files.shard`. A mapping has slices or functions by name; tensors that it does
        not name are not loaded. By default everything.
    framework : {"torch", "cupy", "pinning", "dlpack", "numpy"}, optional
        The type of the tensors: ``torch.Tensor``; ``cupy.ndarray``; `pinning.arrays.DeviceArray`; objects of any dtype
        with ``__dlpack__``; ``numpy.ndarray``, on the host. By default torch if it is installed, otherwise pinning.

    Returns
    -------
    dict of str to tensor
        Views, aligned to 16 bytes, of one allocation per file, completely loaded: work of any stream, thread or device
        finds their bytes. For several devices a dict of such dicts, with the keys of `device`.

    Raises
    ------
    OSError
        A file cannot be opened.
    FileFormatError
        A file is not a valid safetensors file; two files have a tensor of the same name; an index names a tensor that
        its file does not have; the framework does not support a dtype.
    FileError
        A file cannot be read, or was changed during the load.
    InvalidRangeError
        A plan names a tensor that no file has, or a slice outside a tensor; a device is named twice.
    LayoutError
        A slice, of a dtype of less than 8 bits, begins or ends inside a byte.
    ImportError
        The framework is not installed.

    After an error, or Ctrl-C, the files are closed and the memory is given back.

    See Also
    --------
    save_file, copy_file_async, pinning.files.shard

    Examples
    --------
    >>> pinning.save_file({"weight": numpy.ones((3, 4), "f4")}, "model.safetensors")
    >>> tensors = pinning.load_file("model.safetensors", "host", framework="numpy")
    >>> tensors["weight"].shape
    (3, 4)
    """
    targets = _targets(device, queue, slices, framework)
    with ExitStack() as files:
        shards = [_opened(shard.path, shard.names, files) for shard in find_shards(path)]
        _check_names(shards, targets)
        wanted = [[list(pieces_of(shard.tensors, target.plan)) for target in targets] for shard in shards]
        for of_shard in wanted:
            for target, pieces in zip(targets, of_shard, strict=True):
                for piece in pieces:
                    target.library.check(piece.tensor)
        loaded = _load(shards, wanted, targets, files)
    return dict(zip(device, loaded, strict=True)) if isinstance(device, Mapping) else loaded[0]


class _Target(NamedTuple):
    """A device's queue, the library of its tensors, and what to load there."""

    queue: Queue
    library: Framework
    plan: Plan | None


def _targets(device: Any, queue: Any, slices: Any, framework: str | None) -> list[_Target]:
    if not isinstance(device, Mapping):
        check_plan(slices, "slices")
        given = None if queue is None else as_queue(queue)
        target = _device(device, given)
        if given is not None and given.device is not target:
            raise PinningError(f"{given!r} is not of {target.name}: give a queue of that device")
        return [_Target(given or default_queue(target), framework_of(framework, target), slices)]
    if queue is not None or slices is not None:
        raise TypeError("a dict of devices has the slices of each, and default queues: leave out queue and slices")
    if not device:
        raise ArgumentError("device is an empty dict; it must name at least one device")
    names: dict[int, Any] = {}  # by the id of the device
    found: list[Any] = []
    for name, plan in device.items():
        check_plan(plan, f"the plan of {name}")
        found.append(_device(name, None))
        other = names.setdefault(id(found[-1]), name)
        if other is not name:
            raise ArgumentError(f"device has {other!r} and {name!r}, which are the same device; give one plan for it")
    return [
        _Target(default_queue(each), framework_of(framework, each), plan)
        for each, plan in zip(found, device.values(), strict=True)
    ]


class _Shard(NamedTuple):
    """An open file, the tensors wanted from it in the order of their bytes, and its stamp from before it was read."""

    file: OpenFile
    tensors: list[TensorInfo]
    stamp: tuple[int, int]


def _opened(path: Path, names: frozenset[str] | None, files: ExitStack) -> _Shard:
    wait_for_saves(path)
    file = files.enter_context(OpenFile(path))
    stamp = _stamp(file)
    length = length_of(_read(file, 0, min(8, stamp[0])), stamp[0], file.path)
    tensors = parse(_read(file, 8, length), stamp[0], file.path).tensors
    if names is not None:
        if missing := names - {tensor.name for tensor in tensors}:
            raise FileFormatError(f"{file.path!r} has no tensor {min(missing)!r}, which its index says it has")
        tensors = [tensor for tensor in tensors if tensor.name in names]
    return _Shard(file, tensors, stamp)


def _stamp(file: OpenFile) -> tuple[int, int]:
    """Its size and modification time."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _read(file: OpenFile, offset: int, nbytes: int) -> bytes:
    blocks: list[bytes] = []
    while nbytes > 0:
        block = os.pread(file.fileno(), nbytes, offset)
        if not block:
            raise FileFormatError(f"{file.path!r} ends at byte {offset}: has it been truncated?")
        blocks.append(block)
        offset, nbytes = offset + len(block), nbytes - len(block)
    return b"".join(blocks)


def _check_names(shards: list[_Shard], targets: list[_Target]) -> None:
    where: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            other = where.setdefault(tensor.name, shard.file.path)
            if other != shard.file.path:
                raise FileFormatError(
                    f"the tensor {tensor.name!r} is in both {other!r} and {shard.file.path!r}; load them one by one"
                )
    for target in targets:
        for name in target.plan if isinstance(target.plan, Mapping) else ():
            if name not in where:
                raise InvalidRangeError(f"slices names the tensor {name!r}, which is in none of the files")


def _load(
    shards: list[_Shard], wanted: list[list[list[Piece]]], targets: list[_Target], files: ExitStack
) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = [{} for _ in targets]
    memories: list[Any] = []
    events: list[Any] = []
    links = _Links(targets, files)
    cutter = Cutter([target.queue for target in targets], links.queue, links.reaches, files)
    rounds = Rounds(targets[0].queue) if len(targets) == 1 else None
    try:
        for shard, of_shard in zip(shards, wanted, strict=True):
            places: list[dict[Piece, int]] = []
            for target, pieces, found in zip(targets, of_shard, loaded, strict=True):
                at, nbytes = _place([piece.tensor for piece in pieces])
                memory = target.library.allocate(nbytes) if nbytes else None
                memories.append(memory)
                base = target.library.address(memory) if nbytes else 0
                of_target = {}
                for piece, each in zip(pieces, at, strict=True):
                    tensor = piece.tensor
                    if tensor.nbytes:
                        found[tensor.name] = target.library.view(memory, each, tensor)
                        of_target[piece] = base + each
                    else:
                        found[tensor.name] = target.library.empty(tensor)
                places.append(of_target)
            for columns in take_columns(places, cutter.able):
                for event in cutter.read(shard.file, columns, memories[-len(targets) :]):
                    events.append(event)
            _copy(shard, places, memories[-len(targets) :], targets, links, rounds, events)
        if rounds is not None:
            rounds.finish()
        for event in events:
            event.wait()
        for shard in shards:
            if _stamp(shard.file) != shard.stamp:
                raise FileError(5, "it was written while it was read; load it again", shard.file.path)
    except BaseException:  # Ctrl-C too
        events += [] if rounds is None else rounds.under_way()
        for event in events:
            if hasattr(event, "cancel"):
                event.cancel()
        for event in events:
            with suppress(Exception):
                event.wait()  # until then the memory is in use
        # The traceback keeps this frame, and so its variables.
        loaded.clear()
        memories.clear()
        found, memory = {}, None
        raise
    return loaded


def _place(tensors: list[TensorInfo]) -> tuple[list[int], int]:
    """The offset of each tensor in one allocation, and the size of that.

    Tensors follow one another as in the file, so that many form one range; one that would not be aligned begins a new
    range.
    """
    places, end = [], 0
    for tensor in tensors:
        at = -(-end // _ALIGNMENT) * _ALIGNMENT
        places.append(at)
        end = at + tensor.nbytes
    return places, end


class _Links:
    """Chooses which of several devices reads bytes that all need: the one with least to read, if others reach it."""

    def __init__(self, targets: list[_Target], files: ExitStack) -> None:
        self._devices = [target.queue.device for target in targets]
        self._files = files
        self._queues: dict[int, Queue] = {}
        self._busy = [0] * len(targets)  # bytes

    def read(self, who: int, nbytes: int) -> None:
        self._busy[who] += nbytes

    def owner(self, among: Sequence[int]) -> int:
        return min(among, key=lambda each: self._busy[each])

    def reaches(self, source: int, target: int) -> bool:
        ends = self._devices[source], self._devices[target]
        return not any(is_host(each) for each in ends) and ends[0].connection(ends[1]) is MemoryConnection.UNIFIED

    def queue(self, source: int) -> Queue:
        """A queue besides the default queue, so that later reads do not wait for copies to other devices."""
        if source not in self._queues:
            self._queues[source] = self._files.enter_context(Queue(self._devices[source]))
        return self._queues[source]


def _copy(
    shard: _Shard,
    places: list[dict[Piece, int]],
    memories: list[Any],
    targets: list[_Target],
    links: _Links,
    rounds: Rounds | None,
    events: list[Any],
) -> None:
    """Submit all copies of one file. Appends their events one by one, except for `rounds`, which use several links."""
    wanting: dict[Piece, list[int]] = {}
    for who, of_target in enumerate(places):
        for piece in of_target:
            wanting.setdefault(piece, []).append(who)
    reads: list[dict[Piece, int]] = [{} for _ in targets]
    passes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for piece, among in sorted(wanting.items(), key=lambda each: len(each[1])):  # first what only one needs
        owner = links.owner(among)
        for who in among:
            if who == owner or not links.reaches(owner, who):
                reads[who][piece] = places[who][piece]
                links.read(who, piece.tensor.nbytes)
            else:
                passed = places[who][piece], places[owner][piece], piece.tensor.nbytes
                passes.setdefault((owner, who), []).append(passed)
    copies: list[Event | None] = []
    for target, of_target, memory in zip(targets, reads, memories, strict=True):
        copy = None
        if of_target:
            in_device = not is_host(target.queue.device)
            ranges = _ranges(of_target)
            nbytes, rows = sum(each.nbytes for each in ranges), sum(each.nbytes // each.row for each in ranges)
            if nbytes >= _SMALL * rows:
                shard.file.look_for_cold(ranges[0].src, ranges[-1].end - ranges[0].src)
            # Early: the file is already as its header says, and no pending work of the queue is expected to write it.
            if (
                rounds is not None
                and in_device
                and nbytes >= max(DIVIDED_FROM, rows * LARGEST_BLOCK)
                and ways_of(target.queue)
            ):
                parts = [row for each in ranges for row in each.rows()]
                rounds.add(FileParts(shard.file, parts, (memory,), True, copy_of(shard.file)).part, nbytes)
                continue
            copy = copy_parts(target.queue, shard.file, ranges, in_device=in_device, keep=(memory,), early=True)
            events.append(copy)
        copies.append(copy)
    for (owner, who), ends in passes.items():
        read = copies[owner]
        assert read is not None
        keep = memories[owner], memories[who]
        events.append(links.queue(owner).submit(partial(_pass_on, ends), (read,), keep))


def _pass_on(ends: list[tuple[int, int, int]], queue: VendorQueue) -> None:
    for dst, src, nbytes in ends:
        queue.copy(dst, src, nbytes)


class _Range(NamedTuple):
    """Bytes that are contiguous in memory, and in the file one row, or several `pitch` bytes apart."""

    dst: int
    src: int
    nbytes: int
    row: int
    pitch: int

    @property
    def end(self) -> int:
        return self.src + (self.nbytes // self.row - 1) * self.pitch + self.row

    def rows(self) -> Iterator[tuple[int, int, int]]:
        for i in range(self.nbytes // self.row):
            yield self.dst + i * self.row, self.src + i * self.pitch, self.row


def _ranges(places: dict[Piece, int]) -> list[_Range]:
    """The ranges of pieces, in the file's order; pieces that are contiguous in both the file and memory are one."""
    ranges: list[_Range] = []
    for (tensor, rows, pitch), at in sorted(places.items(), key=lambda each: each[0].tensor.begin):
        last = ranges[-1] if ranges else None
        if (
            rows == 1
            and last
            and last.row == last.nbytes
            and (last.dst, last.src) == (at - last.nbytes, tensor.begin - last.nbytes)
        ):
            size = last.nbytes + tensor.nbytes
            ranges[-1] = last._replace(nbytes=size, row=size)
        else:
            ranges.append(_Range(at, tensor.begin, tensor.nbytes, tensor.nbytes // rows, pitch))
    return ranges


def _device(device: Any, queue: Queue | None) -> MemoryDevice:
    chosen: Any = device
    if device is None:
        chosen = default_device() if queue is None else queue.device
    elif not isinstance(device, Device):
        name = str(device) if hasattr(device, "type") else device  # of a torch.device
        chosen = device_of_name("host" if str(name).partition(":")[0] == "cpu" else name)
    if not isinstance(chosen, MemoryDevice):
        raise PinningError(f"{chosen.name} has no queues for copies, so nothing can be loaded there")
    return chosen

# SPDX-License-Identifier: Apache-2.0
"""Tensors to a safetensors file."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy

from pinning.arena import Arena, ArenaAllocation
from pinning.arrays.array import DeviceArray
from pinning.copies.ends import End, end_of
from pinning.errors import ArgumentError, InvalidRangeError, LayoutError, PinningError
from pinning.files.copy import is_host
from pinning.files.file_work import FileCopy, OpenFile, copy_parts
from pinning.files.frameworks import DLPackTensor
from pinning.files.header import Written, build
from pinning.files.order import complete_in_turn, queue_of_writes, wait_for_saves
from pinning.files.replacement import Replacement
from pinning.files.shards import AnyPath
from pinning.files.snapshot import Parts, snapshot
from pinning.interop.dtypes import DTYPES, NAMES_OF_NUMPY, NAMES_OF_TORCH
from pinning.queues import Event, Queue, default_queue
from pinning.runtime.arguments import describe, flag


def save_file(
    tensors: Mapping[str, Any], path: AnyPath, metadata: Mapping[str, str] | None = None, *, fsync: bool = False
) -> None:
    """Save tensors of devices and the host as a safetensors file.

    Tensors on a device are copied to pinned blocks, from which threads write the file; no other host memory is used.
    The file is written beside `path` and renamed when it is complete; until then `path` is unchanged. A file that is
    replaced keeps its mode and, if allowed, its owner, group, access control list and extended attributes. If saves of
    the same file are in the background, they take effect first.

    Parameters
    ----------
    tensors : mapping of str to tensor
        ``torch.Tensor``, ``cupy.ndarray``, ``numpy.ndarray``, `pinning.arrays.DeviceArray`, or "dlpack" tensors of
        `load_file`; contiguous. Waits for all pending work of their devices.
    path : path-like
        If it is a symbolic link, the file to which it points now is replaced.
    metadata : mapping of str to str, optional
    fsync : bool
        Whether to wait until the file is on the disk.

    Raises
    ------
    LayoutError
        A tensor is not contiguous, or not a whole number of bytes; or two torch tensors share memory, which the file
        would contain twice.
    TypeError
        A value is not a tensor, or has a dtype that the format lacks; a name or an item of metadata is not a string.
    FileFormatError
        A name, or a string of the metadata, contains an unpaired surrogate, which UTF-8 cannot encode; or they make the
        header longer than 100 MB, which readers refuse.
    OSError
        The file cannot be written; `FileError` if that is found while threads write it, such as a full disk or memory
        of a mapped file that was truncated, or if `path` is not that of a regular file.
    VendorError
        A device refused.

    After an error, or Ctrl-C, no file is left beside `path`, which is unchanged. But it has the new file if the error
    comes after the rename: Ctrl-C, or an `fsync` of the folder that fails.

    Examples
    --------
    >>> pinning.save_file({"weight": numpy.ones((3, 4), "f4")}, "model.safetensors")
    """
    saving = _Saving(tensors, path, metadata, fsync)
    try:
        saving.begin()
        for copy in saving.write(saving.parts):
            copy.wait()
        wait_for_saves(saving.target)
        saving.complete()
    except BaseException as error:  # Ctrl-C too
        saving.give_up(error)
        raise


def save_file_async(
    tensors: Mapping[str, Any],
    path: AnyPath,
    metadata: Mapping[str, str] | None = None,
    *,
    fsync: bool = False,
    arena: Arena | None = None,
) -> Event:
    """`save_file`, but return as soon as the tensors may be modified again; threads continue to write the file.

    Tensors on a device are copied into locked memory of an arena, as far as it has room; the rest, and tensors on the
    host, are written before the call returns. The first save of a size has to lock that memory; later ones reuse it.

    Parameters
    ----------
    tensors, path, metadata, fsync
        As for `save_file`.
    arena : Arena, optional
        The arena for the copies until they are written. By default one per device, which is kept: it grows to what the
        largest save needs, but at most to a quarter of the free memory. `pinning.files.trim_snapshots` frees these.

    Returns
    -------
    Event
        Complete once the file is at `path`. Saves, loads and copies of the same file that are called later come after
        it. It fails with the errors of `save_file`, with the same consequences. If it is dropped, the file is still
        written, and an error goes to `sys.unraisablehook`. The exit of the program waits for it. In a forked child it
        belongs to the parent.

    Raises
    ------
    TypeError
        `arena` is not an `Arena`.
    Exception
        The errors of `save_file` that are found before the call returns. Ctrl-C ends the save.
    """
    if arena is not None and not isinstance(arena, Arena):
        raise TypeError(f"arena is {describe(arena)}; it must be a pinning.Arena, or None for one that is kept")
    saving = _Saving(tensors, path, metadata, fsync)
    blocks: list[ArenaAllocation] = []
    copies: list[Event] = []
    try:
        saving.begin()
        rest: list[Parts] = []
        held: list[tuple[int, int, int]] = []  # offset in the file, address and bytes
        for group in saving.parts:
            taken, left = snapshot(group, arena, blocks, copies) if group.device is not None else ([], group)
            held.extend(taken)
            if left.ranges:
                rest.append(left)
        copies.extend(saving.write(rest))
        for each in copies:
            each.wait()
        written = saving.write([Parts(None, sorted(held), [])], queue_of_writes()) if held else []
        return complete_in_turn(partial(_complete, saving, blocks), saving.target, written)
    except BaseException as error:
        with saving.ending:
            if saving.ended:  # the queue was quicker
                raise
            saving.give_up(error)
            for copy in copies:
                with suppress(Exception):
                    copy.wait()
            _free(blocks)
        raise


def _complete(saving: _Saving, blocks: list[ArenaAllocation]) -> None:
    """Called by the queue, after the writes."""
    with saving.ending:
        if saving.ended:
            return
        try:
            saving.check()
            saving.complete()
        except BaseException as error:
            saving.discard(error)
            raise
        finally:
            _free(blocks)


def _free(blocks: Iterable[ArenaAllocation]) -> None:
    for block in blocks:
        with suppress(PinningError):  # it is freed when it is dropped, with a warning
            block.free()


class _Saving:
    """Tensors on their way to a file."""

    def __init__(
        self, tensors: Mapping[str, Any], path: AnyPath, metadata: Mapping[str, str] | None, fsync: bool
    ) -> None:
        self._new = Replacement(path, flag(fsync, "fsync"))
        self.target = self._new.target
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata is {describe(metadata)}; it must be a dict of strings to strings")
        for pair in (metadata or {}).items():
            if not all(isinstance(each, str) for each in pair):
                given = f"{pair[0]!r}: {describe(pair[1])}"
                raise TypeError(f"metadata has {given}; both must be strings, such as str(value)")
        if not hasattr(tensors, "items"):
            raise TypeError(f"tensors is {describe(tensors)}; it must be a dict of names and tensors")
        sources = {name: _source(name, tensor) for name, tensor in tensors.items()}
        _refuse_shared(sources)
        written = build({name: (source.dtype, source.shape) for name, source in sources.items()}, metadata)
        self.parts = _parts(written, sources)
        self._written = written
        self._copies: list[FileCopy] = []
        self._file: OpenFile | None = None
        self.ending = threading.Lock()  # held by the thread that ends it: the caller, or a queue
        self.ended = False

    def begin(self) -> None:
        """Create the file. The caller discards it if this fails, or Ctrl-C ends it at any point."""
        self._file = self._new.create(self._written.nbytes)
        _write_all(self._file, self._written.text)

    def write(self, groups: Iterable[Parts], queue: Queue | None = None) -> list[FileCopy]:
        """Let threads write parts of the file; returns their copies."""
        assert self._file is not None
        begun: list[FileCopy] = []
        for device, ranges, owners in groups:
            chosen = queue or default_queue(device or "host")
            copy = copy_parts(chosen, self._file, ranges, in_device=device is not None, writes=True, keep=owners)
            self._copies.append(copy)
            begun.append(copy)
        return begun

    def check(self) -> None:
        """Raise FileError if something could not be written. Makes no vendor call."""
        for copy in self._copies:
            copy.check_moved()

    def complete(self) -> None:
        self._new.complete()
        self.ended = True

    def discard(self, error: BaseException) -> None:
        self.ended = True
        for copy in self._copies:
            copy.cancel()
        self._new.discard(error)

    def give_up(self, error: BaseException) -> None:
        """`discard`, and wait until its memory is no longer being read."""
        self.discard(error)
        for copy in self._copies:
            with suppress(Exception):
                copy.wait()


class _Source(NamedTuple):
    """A tensor in terms of the format; `end` is None if it has no elements."""

    dtype: str
    shape: tuple[int, ...]
    end: End | None
    owner: object
    of_torch: bool = False


def _source(name: Any, tensor: Any) -> _Source:
    if not isinstance(name, str):
        raise TypeError(f"a tensor has the name {describe(name)}; it must be a string")
    if name == "__metadata__":
        raise ArgumentError("a tensor has the name '__metadata__', which the format uses itself; give it another name")
    named = f"the tensor {name!r}"
    if isinstance(tensor, numpy.generic):  # a scalar, which could be taken for an address
        tensor = numpy.asarray(tensor)
    if isinstance(tensor, DLPackTensor):
        return _Source(tensor.dtype, tensor.shape, _end_of_ours(tensor._bytes), tensor)
    dtype = getattr(tensor, "dtype", None)
    if str(dtype).startswith("torch."):
        return _of_torch(named, tensor, tuple(tensor.shape))
    if isinstance(tensor, numpy.ma.MaskedArray):
        raise TypeError(f"{named} is a masked array, and the format has no masks; save filled() of it")
    is_contiguous = getattr(getattr(tensor, "flags", None), "c_contiguous", None)
    if hasattr(tensor, "is_c_contiguous"):
        is_contiguous = tensor.is_c_contiguous()
    if dtype is None or is_contiguous is None:
        raise TypeError(f"{named} is {describe(tensor)}; it must be an array or a tensor, such as numpy.asarray of it")
    shape = tuple(int(length) for length in tensor.shape)
    # ml_dtypes adds to NumPy the types that only torch has, with the same names.
    name = NAMES_OF_NUMPY.get(numpy.dtype(dtype)) or NAMES_OF_TORCH.get(f"torch.{dtype}")
    if name is None:
        if (little := numpy.dtype(dtype).newbyteorder("<")) in NAMES_OF_NUMPY:
            raise TypeError(
                f"{named} is of dtype {dtype}, big-endian, and the format is little-endian: save astype({little.str!r})"
            )
        raise TypeError(
            f"{named} is of dtype {dtype}, which the format does not support; it supports {', '.join(DTYPES)}"
        )
    if not is_contiguous:
        raise _scattered(named)
    if isinstance(tensor, DeviceArray):
        return _Source(name, shape, _end_of_ours(tensor), tensor)
    return _Source(name, shape, end_of(tensor) if tensor.nbytes else None, tensor)


def _end_of_ours(array: DeviceArray) -> End | None:
    return End(array.device_ptr, array.nbytes, array._buffer.place, True, array) if array.nbytes else None


def _of_torch(named: str, tensor: Any, shape: tuple[int, ...]) -> _Source:
    name = NAMES_OF_TORCH.get(str(tensor.dtype))
    if name is None:
        raise TypeError(
            f"{named} is of dtype {tensor.dtype}, which the format does not support; it supports {', '.join(DTYPES)}"
        )
    if str(tensor.layout) != "torch.strided" or tensor.is_meta:
        raise TypeError(f"{named} is {'on meta' if tensor.is_meta else tensor.layout}: it has no bytes to save")
    if not tensor.is_contiguous():
        raise _scattered(named)
    bare = tensor.detach().resolve_conj().resolve_neg()  # of the same bytes, unless its conj or neg bit is set
    nbytes = bare.numel() * bare.element_size()
    if name == "F4" and shape:
        shape = (*shape[:-1], 2 * shape[-1])  # torch stores pairs of these
    return _Source(name, shape, end_of((bare.data_ptr(), nbytes)) if nbytes else None, bare, True)


def _refuse_shared(sources: Mapping[str, _Source]) -> None:
    """As safetensors does for torch's tensors: models tie some, which a file cannot express."""
    places = [(id(each.end.device), each.end.ptr, each.end.ptr + (each.end.size or 0), name)
              for name, each in sources.items() if each.of_torch and each.end is not None]  # fmt: skip
    for (device, _, end, name), (other_device, start, _, other) in pairwise(sorted(places)):
        if device == other_device and start < end:
            raise LayoutError(
                f"the tensors {name!r} and {other!r} share memory: the file would contain it twice, and what is loaded "
                "would share it no more; save one of them, or a clone"
            )


def _scattered(named: str) -> LayoutError:
    return LayoutError(f"{named} is not contiguous in C order; save a contiguous copy of it")


def _parts(written: Written, sources: Mapping[str, _Source]) -> list[Parts]:
    """The parts to write, by device. Waits for each device's work."""
    groups: dict[int, Parts] = {}
    idle: set[int] = set()  # devices that have been waited for, the host among them
    for name, begin in written.begins.items():
        source = sources[name]
        if source.end is None:
            continue
        device: Any = source.end.device
        expected = _nbytes(source)
        if source.end.size != expected:
            raise InvalidRangeError(f"the tensor {name!r} has {source.end.size} bytes, and by its shape {expected}")
        place = None if is_host(device) else device
        if device is not None and id(device) not in idle:
            device.synchronize()
            idle.add(id(device))
        group = groups.setdefault(id(place), Parts(place, [], []))
        group.ranges.append((begin, source.end.ptr, expected))
        group.owners.extend((source.owner, source.end.owner))
    return list(groups.values())


def _nbytes(source: _Source) -> int:
    return math.prod(source.shape) * DTYPES[source.dtype].bits // 8


def _write_all(file: OpenFile, text: bytes) -> None:
    at = 0
    while at < len(text):
        at += os.pwrite(file.fileno(), text[at:], at)

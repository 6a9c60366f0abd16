# SPDX-License-Identifier: Apache-2.0
"""Tensors from safetensors files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from pinning.errors import FileError, FileFormatError, PinningError
from pinning.files.copy import is_host
from pinning.files.file_work import FileCopy, OpenFile, copy_parts
from pinning.files.frameworks import Framework, framework_of
from pinning.files.header import TensorInfo, length_of, parse
from pinning.files.shards import AnyPaths, find_shards
from pinning.locking.devices import default_device
from pinning.locking.devices import device as device_of_name
from pinning.plugin import Device, MemoryDevice
from pinning.queues import Queue, as_queue, default_queue

_ALIGNMENT = 16  # bytes; of every tensor


def load_file(
    path: AnyPaths,
    device: Device | str | None = None,
    queue: Queue | object | None = None,
    *,
    framework: str | None = None,
) -> dict[str, Any]:
    """Load the tensors of safetensors files into memory of a device.

    Threads read all files, as one stream, straight into pinned blocks, from where the device copies: no more of the
    host's memory is used than these. What is not in the page cache is read past it, where the disk allows that. All
    headers are read and checked before anything is allocated.

    Parameters
    ----------
    path : path-like, or iterable of path-like
        Files; a folder of files ``*.safetensors``; an index ``*.safetensors.index.json``, or a folder with one.
    device : Device or str, optional
        Such as ``"cuda:0"`` or ``"host"``; also torch's name of it (``"cpu"``, ``torch.device("cuda")``). By default
        that of `queue`, or else the first that is not the host.
    queue : Queue or object with ``__cuda_stream__``, optional
        Where the copies are submitted, behind what is there; by default the device's default queue.
    framework : {"torch", "cupy", "pinning", "dlpack", "numpy"}, optional
        Whose tensors: ``torch.Tensor``; ``cupy.ndarray``; `pinning.arrays.DeviceArray`; objects of any dtype with
        ``__dlpack__``; ``numpy.ndarray``, on the host. By default torch's where it is installed, or else pinning's.

    Returns
    -------
    dict of str to tensor
        Views, aligned to 16 bytes, of one allocation for each file. All bytes are there.

    Raises
    ------
    OSError
        A file cannot be opened.
    FileFormatError
        A file is no safetensors file, or says what cannot be; two files have a tensor of one name; an index names a
        tensor that its file has not; the framework has not its dtype.
    FileError
        A file cannot be read, or was changed meanwhile.
    ImportError
        The framework is not installed.

    After an error, or Ctrl-C, the files are closed and the memory is given back.

    See Also
    --------
    save_file, copy_file_async
    """
    given = None if queue is None else as_queue(queue)
    target = _device(device, given)
    if given is not None and given.device is not target:
        raise PinningError(f"{given!r} is not of {target.name}: give a queue of that device")
    library = framework_of(framework, target)
    with ExitStack() as files:
        shards = [_opened(shard.path, shard.names, files) for shard in find_shards(path)]
        _check_names(shards)
        for shard in shards:
            for tensor in shard.tensors:
                library.check(tensor)
        return _load(shards, library, given or default_queue(target))


class _Shard(NamedTuple):
    """An open file, the tensors wanted from it in the order of their bytes, and what it was when that was read."""

    file: OpenFile
    tensors: list[TensorInfo]
    stamp: tuple[int, int]


def _opened(path: os.PathLike[str], names: frozenset[str] | None, files: ExitStack) -> _Shard:
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
    """Its size, and when it was last written."""
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


def _check_names(shards: list[_Shard]) -> None:
    where: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            other = where.setdefault(tensor.name, shard.file.path)
            if other != shard.file.path:
                raise FileFormatError(
                    f"the tensor {tensor.name!r} is in both {other!r} and {shard.file.path!r}; load them one by one"
                )


def _load(shards: list[_Shard], library: Framework, queue: Queue) -> dict[str, Any]:
    loaded: dict[str, Any] = {}
    memories: list[Any] = []
    copies: list[FileCopy] = []
    try:
        for shard in shards:
            places, nbytes = _place(shard.tensors)
            memory = None
            if nbytes:
                memory = library.allocate(nbytes)
                memories.append(memory)
                copies.append(_copy(shard, memory, library.address(memory), places, queue))
            for tensor, at in zip(shard.tensors, places, strict=True):
                loaded[tensor.name] = library.view(memory, at, tensor) if tensor.nbytes else library.empty(tensor)
        for copy in copies:
            copy.wait()
        for shard in shards:
            if _stamp(shard.file) != shard.stamp:
                raise FileError(5, "it was written while it was read; load it again", shard.file.path)
    except BaseException:  # Ctrl-C too
        for copy in copies:
            copy.cancel()
        for copy in copies:
            with suppress(Exception):
                copy.wait()  # until then the memory is in use
        # The traceback keeps this frame.
        loaded.clear()
        memories.clear()
        memory = None
        raise
    return loaded


def _place(tensors: list[TensorInfo]) -> tuple[list[int], int]:
    """Where in one allocation each tensor goes, and its bytes.

    As they lie in the file, one behind the other, so that many are one range; but where a tensor would not be aligned a
    new range begins.
    """
    places, end = [], 0
    for tensor in tensors:
        at = -(-end // _ALIGNMENT) * _ALIGNMENT
        places.append(at)
        end = at + tensor.nbytes
    return places, end


def _copy(shard: _Shard, memory: Any, address: int, places: list[int], queue: Queue) -> FileCopy:
    parts = list(_ranges(shard.tensors, places, address))
    first, (_, last, size) = parts[0][1], parts[-1]
    shard.file.look_for_cold(first, last + size - first)
    # Early: the file is as its header says already, and nothing that the queue still has to do was to write it.
    return copy_parts(queue, shard.file, parts, in_device=not is_host(queue.device), keep=(memory,), early=True)


def _ranges(tensors: list[TensorInfo], places: list[int], base: int) -> Iterator[tuple[int, int, int]]:
    """Address, offset and bytes of each range that is one in the file and in memory."""
    dst = src = size = 0
    for tensor, at in zip(tensors, places, strict=True):
        if not tensor.nbytes:
            continue
        if size and tensor.begin == src + size and base + at == dst + size:
            size += tensor.nbytes
            continue
        if size:
            yield dst, src, size
        dst, src, size = base + at, tensor.begin, tensor.nbytes
    if size:
        yield dst, src, size


def _device(device: Any, queue: Queue | None) -> MemoryDevice:
    chosen: Any = device
    if device is None:
        chosen = default_device() if queue is None else queue.device
    elif not isinstance(device, Device):
        name = str(device)  # torch.device too
        chosen = device_of_name("host" if name.partition(":")[0] == "cpu" else name)
    if not isinstance(chosen, MemoryDevice):
        raise PinningError(f"{chosen.name} has no queues to copy in, so nothing can be loaded there")
    return chosen

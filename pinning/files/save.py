# SPDX-License-Identifier: Apache-2.0
"""Tensors to a safetensors file."""

from __future__ import annotations

import errno
import math
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from pinning.arrays.array import DeviceArray
from pinning.copies.ends import End, end_of
from pinning.errors import FileError, InvalidRangeError, LayoutError
from pinning.files.copy import is_host
from pinning.files.file_work import FileCopy, OpenFile, copy_parts
from pinning.files.frameworks import DLPackTensor
from pinning.files.header import Written, build
from pinning.files.shards import AnyPath
from pinning.interop.dtypes import DTYPES, NAMES_OF_NUMPY, NAMES_OF_TORCH
from pinning.plugin import MemoryDevice
from pinning.queues import default_queue
from pinning.runtime.arguments import describe, path_name


def save_file(
    tensors: Mapping[str, Any], path: AnyPath, metadata: Mapping[str, str] | None = None, *, fsync: bool = False
) -> None:
    """Save tensors of devices and the host as a safetensors file.

    Those of a device go through pinned blocks, from where threads write the file; no more of the host's memory is used
    than these. The file is written beside `path` and renamed when it is whole: before that, what is at `path` stays.

    Parameters
    ----------
    tensors : mapping of str to tensor
        ``torch.Tensor``, ``cupy.ndarray``, ``numpy.ndarray``, `pinning.arrays.DeviceArray`, or what `load_file` gives
        as "dlpack"; contiguous. What their devices have still to do is waited for.
    path : path-like
    metadata : mapping of str to str, optional
    fsync : bool
        Whether to wait until the disk has the file.

    Raises
    ------
    LayoutError
        A tensor is not contiguous, or of no whole number of bytes; or two of torch share memory: in the file they would
        be two, and as large as both.
    TypeError
        A value is no tensor, or of a dtype that the format has not; a name or what is in the metadata is no string.
    FileFormatError
        A name, or what is in the metadata, cannot be in a file: it has half a letter in it (a lone surrogate).
    OSError
        The file cannot be written; `FileError` where that is found while threads write it, such as a full disk, or
        where something that is no regular file is at `path`.
    VendorError
        A device refused.

    After an error, or Ctrl-C, nothing new is at `path`, and nothing beside it.
    """
    target = _target(path)
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata is {describe(metadata)}; it must be a dict of strings to strings")
    for pair in (metadata or {}).items():
        if not all(isinstance(each, str) for each in pair):
            raise TypeError(f"metadata has {pair[0]!r}: {describe(pair[1])}; both must be strings, such as str(value)")
    if not hasattr(tensors, "items"):
        raise TypeError(f"tensors is {describe(tensors)}; it must be a dict of names and tensors")
    sources = {name: _source(name, tensor) for name, tensor in tensors.items()}
    _refuse_shared(sources)
    written = build({name: (source.dtype, source.shape) for name, source in sources.items()}, metadata)
    stem = os.fsencode(target.name)[:100].decode("utf-8", "ignore")  # a name has 255 bytes, whatever their letters
    beside = target.with_name(f".{stem}.{secrets.token_hex(8)}.part")
    try:
        with OpenFile(beside, create=True) as file:
            _write(file, written, sources)
            if fsync:
                os.fsync(file.fileno())
        beside.replace(target)
    except BaseException as error:  # Ctrl-C too
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(beside):
            error.filename = str(target)  # what the caller has named
        raise
    if fsync:
        _sync_folder(target.parent)


class _Source(NamedTuple):
    """A tensor as the format has it; its end is None where it has no elements."""

    dtype: str
    shape: tuple[int, ...]
    end: End | None
    owner: object
    of_torch: bool = False


def _target(path: AnyPath) -> Path:
    target = Path(os.path.realpath(path_name(path)))  # where a link points to
    if target.exists() and not target.is_file():
        raise FileError(errno.EINVAL, "it is no regular file, and would be replaced by one", str(target))
    return target


def _source(name: Any, tensor: Any) -> _Source:
    if not isinstance(name, str) or name == "__metadata__":
        raise TypeError(f"a tensor has the name {describe(name)}; it must be a string other than '__metadata__'")
    named = f"the tensor {name!r}"
    if isinstance(tensor, DLPackTensor):
        return _Source(tensor.dtype, tensor.shape, _end_of_ours(tensor._bytes), tensor)
    dtype = getattr(tensor, "dtype", None)
    if str(dtype).startswith("torch."):
        return _of_torch(named, tensor, tuple(tensor.shape))
    is_contiguous = getattr(getattr(tensor, "flags", None), "c_contiguous", None)
    if hasattr(tensor, "is_c_contiguous"):
        is_contiguous = tensor.is_c_contiguous()
    if dtype is None or is_contiguous is None:
        raise TypeError(f"{named} is {describe(tensor)}; it must be an array or a tensor, such as numpy.asarray of it")
    shape = tuple(int(length) for length in tensor.shape)
    # ml_dtypes gives NumPy the types that torch has beside NumPy's, by the same names.
    name = NAMES_OF_NUMPY.get(numpy.dtype(dtype)) or NAMES_OF_TORCH.get(f"torch.{dtype}")
    if name is None:
        raise TypeError(f"{named} is of dtype {dtype}, which the format has not; it has {', '.join(DTYPES)}")
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
        raise TypeError(f"{named} is of dtype {tensor.dtype}, which the format has not; it has {', '.join(DTYPES)}")
    if str(tensor.layout) != "torch.strided" or tensor.is_meta:
        raise TypeError(f"{named} is {'on meta' if tensor.is_meta else tensor.layout}: it has no bytes to be saved")
    if not tensor.is_contiguous():
        raise _scattered(named)
    bare = tensor.detach().resolve_conj().resolve_neg()  # another tensor of those bytes, unless they stand for others
    nbytes = bare.numel() * bare.element_size()
    if name == "F4" and shape:
        shape = (*shape[:-1], 2 * shape[-1])  # torch has pairs of these
    return _Source(name, shape, end_of((bare.data_ptr(), nbytes)) if nbytes else None, bare, True)


def _refuse_shared(sources: Mapping[str, _Source]) -> None:
    """As the format's own library does with torch's tensors: models tie some, and a file cannot tell of that."""
    places = [(id(each.end.device), each.end.ptr, each.end.ptr + (each.end.size or 0), name)
              for name, each in sources.items() if each.of_torch and each.end is not None]  # fmt: skip
    for (device, _, end, name), (other_device, start, _, other) in pairwise(sorted(places)):
        if device == other_device and start < end:
            raise LayoutError(
                f"the tensors {name!r} and {other!r} share memory: a file would have it twice, and what is loaded "
                "would share it no more; save one of them, or a clone"
            )


def _scattered(named: str) -> LayoutError:
    return LayoutError(f"{named} is not contiguous, the last index moving fastest; save a contiguous copy of it")


def _write(file: OpenFile, written: Written, sources: Mapping[str, _Source]) -> None:
    _write_all(file, written.text)
    os.ftruncate(file.fileno(), written.nbytes)
    by_device: dict[int, tuple[MemoryDevice | None, list[tuple[int, int, int]], list[object]]] = {}
    for name, begin in written.begins.items():
        source = sources[name]
        if source.end is None:
            continue
        device: Any = source.end.device
        expected = _nbytes(source)
        if source.end.size != expected:
            raise InvalidRangeError(f"the tensor {name!r} has {source.end.size} bytes, and by its shape {expected}")
        if device is not None and id(device) not in by_device:
            device.synchronize()
        place = None if is_host(device) else device
        group = by_device.setdefault(id(place), (place, [], []))
        group[1].append((begin, source.end.ptr, expected))
        group[2].extend((source.owner, source.end.owner))
    copies: list[FileCopy] = []
    try:
        for device, parts, owners in by_device.values():
            in_device = device is not None
            copies.append(copy_parts(default_queue(device), file, parts, in_device=in_device, writes=True, keep=owners))
        for copy in copies:
            copy.wait()
    except BaseException:
        for copy in copies:
            copy.cancel()
        for copy in copies:
            with suppress(Exception):
                copy.wait()
        raise


def _nbytes(source: _Source) -> int:
    return math.prod(source.shape) * DTYPES[source.dtype].bits // 8


def _write_all(file: OpenFile, text: bytes) -> None:
    at = 0
    while at < len(text):
        at += os.pwrite(file.fileno(), text[at:], at)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

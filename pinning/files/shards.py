# SPDX-License-Identifier: Apache-2.0
"""The files that a path refers to: one, several, all of a folder, or those that an index names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pinning.errors import ArgumentError, FileError, FileFormatError
from pinning.files.order import wait_for_saves
from pinning.runtime.arguments import describe, path_name

INDEX_SUFFIX = ".safetensors.index.json"
SUFFIX = ".safetensors"
_LARGEST_INDEX = 1 << 30


class Shard(NamedTuple):
    """A file; `names`: the tensors wanted from it, None for all."""

    path: Path
    names: frozenset[str] | None


AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
AnyPaths = AnyPath | Iterable[AnyPath]


def find_shards(path: AnyPaths) -> list[Shard]:
    """The files that a path, or several, refer to. FileNotFoundError: a folder contains none."""
    paths: Iterable[Any]
    if isinstance(path, (str, bytes, os.PathLike)):
        paths = [path]
    elif isinstance(path, Iterable):
        paths = path
    else:
        raise TypeError(f"path is {describe(path)}; it must be a path, or several")
    shards: dict[str, Shard] = {}  # by real path: a file that is named twice is loaded once
    for shard in (shard for each in paths for shard in _found(path_name(each))):
        real = os.path.realpath(shard.path)
        other = shards.setdefault(real, shard)
        both = None if other.names is None or shard.names is None else other.names | shard.names
        shards[real] = Shard(other.path, both)
    if not shards:
        raise ArgumentError("path names no file; give at least one")
    return list(shards.values())


def _found(name: str) -> list[Shard]:
    wait_for_saves(name)
    os.stat(name)  # noqa: PTH116, because of `file/` Path would make `file`
    path = Path(name)
    if path.is_dir():
        return _in_folder(path)
    if path.name.endswith(".json"):
        return _indexed(path)
    return [Shard(path, None)]


def _in_folder(folder: Path) -> list[Shard]:
    indexes = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if len(indexes) > 1:
        names = ", ".join(each.name for each in indexes)
        raise FileFormatError(f"the folder {str(folder)!r} has several indexes: {names}; name one of them")
    if indexes:
        return _indexed(indexes[0])
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise FileNotFoundError(f"the folder {str(folder)!r} has neither files *{SUFFIX} nor an index *{INDEX_SUFFIX}")
    return [Shard(each, None) for each in files]


def _indexed(index: Path) -> list[Shard]:
    named = f"the index {str(index)!r}"
    if not index.is_file():
        raise FileError(22, "it is not a regular file", str(index))
    if index.stat().st_size > _LARGEST_INDEX:
        raise FileFormatError(f"{named} has {index.stat().st_size} bytes; at most {_LARGEST_INDEX} are allowed")
    try:
        contents = json.loads(index.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{named} is not JSON: {error}") from None
    places = contents.get("weight_map") if isinstance(contents, dict) else None
    if not isinstance(places, dict) or not places:
        raise FileFormatError(f"{named} has no weight_map, which names the file of each tensor")
    files: dict[str, set[str]] = {}
    for name, file in places.items():
        if not isinstance(file, str) or not _is_inside(file):
            raise FileFormatError(
                f"{named} has the tensor {name!r} in {file!r}, which is not a file in its folder or below"
            )
        files.setdefault(file, set()).add(name)
    return [Shard(index.parent / file, frozenset(names)) for file, names in sorted(files.items())]


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    try:
        return path_name(file) != "" and bool(path.name) and not path.is_absolute() and ".." not in path.parts
    except (FileNotFoundError, ValueError):  # no file can have the name
        return False

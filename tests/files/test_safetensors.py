# SPDX-License-Identifier: Apache-2.0
"""Safetensors files: valid ones are loaded byte for byte, others are refused before anything is allocated."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pinning
from child_process import in_a_small_file_system
from fake_memory import FakeMemoryDevice
from file_copies import descriptors_of
from folders import SUPPORT
from noise import noise
from pinning.files import header as headers
from pinning.files import load as loading
from pinning.files.header import parse as parse_header
from pinning.interop.dtypes import DTYPES

IN_NUMPY = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"}
Tensors = dict[str, tuple[str, list[int], bytes]]


def write(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None, pad: int = 0) -> Path:
    """An independent writer of the format, which keeps the order of the tensors; the header has them in reverse."""
    said: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        said[name] = {"shape": shape, "data_offsets": [at, at + len(data)], "dtype": dtype}
        at += len(data)
    said = dict(reversed(said.items()))
    return write_raw(path, json.dumps(said).encode() + b" " * pad, b"".join(each[2] for each in tensors.values()))


def write_raw(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)
    return path


def load(path: Any, **how: Any) -> dict[str, Any]:
    return pinning.load_file(path, "host", **{"framework": "numpy", **how})


@st.composite
def some_tensors(draw: Callable[..., Any]) -> Tensors:
    names = draw(st.lists(st.text(max_size=8).filter(lambda name: name != "__metadata__"), unique=True, max_size=6))
    tensors: Tensors = {}
    for i, name in enumerate(names):
        dtype = draw(st.sampled_from(sorted(IN_NUMPY)))
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        count = int(numpy.prod(shape, dtype=int)) * DTYPES[dtype].bits // 8
        data = noise(count, i).tobytes()
        tensors[name] = dtype, shape, bytes(each & 1 for each in data) if dtype == "BOOL" else data
    return tensors


@given(
    tensors=some_tensors(),
    metadata=st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
    pad=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, tensors: Tensors, metadata: dict[str, str] | None, pad: int
) -> None:
    path = write(tmp_path_factory.mktemp("file") / "a.safetensors", tensors, metadata, pad)
    found = load(path)
    assert found.keys() == tensors.keys()
    for name, (dtype, shape, data) in tensors.items():
        array = found[name]
        assert (array.dtype, array.shape, array.tobytes()) == (numpy.dtype(IN_NUMPY[dtype]), tuple(shape), data)
        assert not array.size or array.ctypes.data % 16 == 0
    copy = path.with_name("b.safetensors")
    pinning.save_file(found, copy, metadata)
    again = load(copy)
    assert {name: array.tobytes() for name, array in again.items()} == {name: each[2] for name, each in tensors.items()}
    said = copy.read_bytes()
    length = int.from_bytes(said[:8], "little")
    assert length % 8 == 0
    assert json.loads(said[8 : 8 + length]).get("__metadata__") == metadata


@given(tensors=some_tensors(), where=st.integers(0), how=st.sampled_from(["cut", "flip", "insert", "drop"]))
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_refused_or_holds_no_more_than_it_has(
    tmp_path_factory: pytest.TempPathFactory, tensors: Tensors, where: int, how: str
) -> None:
    path = write(tmp_path_factory.mktemp("file") / "a.safetensors", tensors)
    said = bytearray(path.read_bytes())
    at = where % len(said)
    if how == "cut":
        del said[at:]
    elif how == "flip":
        said[at] ^= 1 << where % 8
    elif how == "insert":
        said[at:at] = b"\x30"
    else:
        del said[at]
    path.write_bytes(said)
    try:
        found = load(path)
    except pinning.FileFormatError as error:
        assert str(path) in str(error)
    else:
        assert sum(array.nbytes for array in found.values()) <= len(said)
    assert descriptors_of(path) == 0


def one(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (one("F7"), "dtype 'F7'"),
        (one(3), "dtype 3"),
        (one(["U8"]), "dtype"),
        (one(shape=[5]), "has 5 bytes"),
        (one(shape=[-4]), "whole numbers"),
        (one(shape=[4.0]), "whole numbers"),
        (one(shape=[True, 4]), "whole numbers"),
        (one(shape="4"), "whole numbers"),
        (one(shape=None), "whole numbers"),
        (one(shape=[1] * 65 + [4]), "66 dimensions"),
        (one(shape=[1 << 32, 1 << 32, 4]), "more bytes"),
        (one(shape=[0, 1 << 62, 4], offsets=[0, 0]), "more bytes"),
        (one("F64", shape=[0, 1 << 61], offsets=[0, 0]), "more bytes"),
        (one("F32", shape=[0, 1 << 31, 1 << 31], offsets=[0, 0]), "more bytes"),
        (one(shape=[1 << 70]), "more bytes"),
        (one("F4", shape=[7]), "28 bits: not a whole number of bytes"),
        (one("F4", shape=[]), "4 bits: not a whole number of bytes"),
        (one("F6_E3M2", shape=[5]), "30 bits: not a whole number of bytes"),
        (one("F6_E2M3", shape=[4]), "has 3 bytes"),
        ({"\ud800": one()["a"]}, r"contains '\\ud800', an unpaired surrogate"),
        ({"__metadata__": {"a": "\udfff"}, **one()}, "an unpaired surrogate"),
        (one(offsets=[0, 5]), "ends at byte"),
        (one(offsets=[-1, 3]), "whole numbers in order"),
        (one(offsets=[4, 0]), "whole numbers in order"),
        (one(offsets=[0]), "whole numbers in order"),
        (one(offsets=[0, 2, 4]), "whole numbers in order"),
        (one(offsets=[0, 1 << 80]), "ends at byte"),
        (one(offsets=[0, 10**4300 - 1]), "ends at byte 9+"),  # the longest number that Python reads and prints
        (one(offsets=None), "whole numbers in order"),
        (one(more=1), "must be an object"),
        ({"a": [1, 2]}, "must be an object"),
        ({"a": {"dtype": "U8", "shape": [4]}}, "must be an object"),
        ({"__metadata__": {"a": 1}, **one()}, "__metadata__"),
        ({"__metadata__": "text", **one()}, "__metadata__"),
        ({**one(), "b": one()["a"]}, "begins inside"),
        ({**one(shape=[1], offsets=[0, 1]), "b": one(shape=[1], offsets=[3, 4])["a"]}, "2 bytes behind"),
        (one(shape=[3], offsets=[1, 4]), "1 bytes behind"),
        (one(shape=[3], offsets=[0, 3]), "nothing may follow it"),
        ({}, "nothing may follow it"),
    ],
)
def test_a_header_that_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: dict[str, Any], says: str) -> None:
    monkeypatch.setattr(loading, "_load", lambda *_: pytest.fail("something would be allocated"))
    path = write_raw(tmp_path / "a file", json.dumps(header).encode(), bytes(4))
    with pytest.raises(pinning.FileFormatError, match=says) as caught:
        load(path)
    assert len(str(caught.value)) < 2000
    assert descriptors_of(path) == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has 0 bytes"),
        (b"1234567", "has 7 bytes"),
        (bytes(8), "hold no JSON object"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "at most .* are allowed"),
        ((100_000_001).to_bytes(8, "little") + b"{}", "at most .* are allowed"),
        ((3).to_bytes(8, "little") + b"{}", "ends at byte 11"),
        ((2).to_bytes(8, "little") + b"[]", "begins with"),
        ((4).to_bytes(8, "little") + b"  {}", "begins with"),
        ((4).to_bytes(8, "little") + b"{}{}", "not JSON"),
        ((4).to_bytes(8, "little") + b"{\xff\xff}", "not UTF-8"),
        ((9).to_bytes(8, "little") + b'{"a":NaN}', "NaN"),
        ((13).to_bytes(8, "little") + b'{"a":1,"a":2}', "twice"),
        ((5 + 5002).to_bytes(8, "little") + b'{"a":' + b"1" * 5001 + b"}", "not JSON|must be an object"),
        ((5 + 200_000).to_bytes(8, "little") + b'{"a":' + b"[" * 200_000, "too deep"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a file").write_bytes(content)
    with pytest.raises(pinning.FileFormatError, match=says):
        load(tmp_path / "a file")


def test_a_shape_of_millions_of_lengths_is_soon_refused() -> None:
    header = b'{"a":{"dtype":"U8","data_offsets":[0,4],"shape":[' + b"4000000000," * 1_000_000 + b"1]}}"
    with pytest.raises(pinning.FileFormatError, match="dimensions"):
        parse_header(header, 8 + len(header) + 4, "a file")


@pytest.mark.parametrize(("dtype", "framework"), [("BF16", "numpy"), ("F8_E4M3", "pinning"), ("F8_E5M2", "numpy")])
def test_a_dtype_that_a_framework_has_not(tmp_path: Path, dtype: str, framework: str) -> None:
    path = write(tmp_path / "a", {"a": (dtype, [8], bytes(DTYPES[dtype].bits))})
    with pytest.raises(pinning.FileFormatError, match=f"'a' is of dtype {dtype}"):
        load(path, framework=framework)


def test_any_dtype_by_dlpack(tmp_path: Path) -> None:
    tensors: Tensors = {
        dtype: (dtype, [2, 4], noise(row.bits, i).tobytes()) for i, (dtype, row) in enumerate(DTYPES.items())
    }
    found = load(write(tmp_path / "a", tensors), framework="dlpack")
    assert {name: (each.dtype, each.shape, each.nbytes) for name, each in found.items()} == {
        name: (dtype, tuple(shape), len(data)) for name, (dtype, shape, data) in tensors.items()
    }
    assert numpy.from_dlpack(found["F32"]).tobytes() == tensors["F32"][2]
    assert numpy.from_dlpack(found["I64"]).tobytes() == tensors["I64"][2]
    for how in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match="without a copy"):
            found["F32"].__dlpack__(**how)
    pinning.save_file(found, tmp_path / "b")
    again = load(tmp_path / "b", framework="dlpack")
    pinning.save_file(again, tmp_path / "c")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_arrays_of_ours(tmp_path: Path) -> None:
    found = load(write(tmp_path / "a", {"a": ("F32", [3, 2], noise(24).tobytes())}), framework="pinning")
    assert isinstance(found["a"], pinning.arrays.DeviceArray)
    assert found["a"].copy_to_host().tobytes() == noise(24).tobytes()


def test_what_is_asked_for_must_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"a": ("U8", [1], b"x")})
    with pytest.raises(pinning.ArgumentError, match="framework is 'jax'; it must be one of 'torch'"):
        load(path, framework="jax")
    with pytest.raises(pinning.ArgumentError, match="CuPy has no arrays on host"):
        load(path, framework="cupy")
    with pytest.raises(pinning.ArgumentError, match="no device 'none:0'"):
        pinning.load_file(path, "none:0", framework="numpy")


# ---- several files ----


def shard(path: Path, name: str, seed: int) -> None:
    write(path, {name: ("U8", [100], noise(100, seed).tobytes()), f"{name}.more": ("U8", [3], b"abc")})


def index(folder: Path, places: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return path


def test_shards(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    shard(tmp_path / "1.safetensors", "a", 1)
    shard(tmp_path / "below" / "2.safetensors", "b", 2)
    places = {"a": "1.safetensors", "a.more": "1.safetensors", "b.more": "below/2.safetensors"}
    path = index(tmp_path, places)
    for each in (path, tmp_path, str(tmp_path), os.fsencode(path), [path]):
        found = load(each)
        assert found.keys() == places.keys()
        assert (found["a"] == noise(100, 1)).all()
        assert found["b.more"].tobytes() == b"abc"
    path.unlink()
    assert load(tmp_path).keys() == {"a", "a.more"}
    both = [tmp_path / "1.safetensors", str(tmp_path / "below" / "2.safetensors")]
    assert load(both).keys() == {"a", "a.more", "b", "b.more"}
    twice = tmp_path / "below" / ".." / "1.safetensors"
    assert load([both[0], both[0], twice]).keys() == {"a", "a.more"}
    assert load([index(tmp_path / "below", {"b": "2.safetensors"}), both[1]]).keys() == {"b", "b.more"}
    indexes = [index(tmp_path, {"b": "below/2.safetensors"}), index(tmp_path / "below", {"b.more": "2.safetensors"})]
    assert load(indexes).keys() == load(indexes[::-1]).keys() == {"b", "b.more"}
    for each in indexes:
        each.unlink()
    with pytest.raises(pinning.FileFormatError, match="in both"):
        shard(tmp_path / "3.safetensors", "a", 3)
        load(tmp_path)
    assert descriptors_of(tmp_path / "1.safetensors") == 0


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ({"a": "../1.safetensors"}, "in its folder"),
        ({"a": "/etc/passwd"}, "in its folder"),
        ({"a": "x/../../1.safetensors"}, "in its folder"),
        ({"a": ""}, "in its folder"),
        ({"a": 1}, "in its folder"),
        ({"a": "1.safe\0tensors"}, "in its folder"),
        ({"a": "\ud800"}, "in its folder"),
        ({"nobody": "1.safetensors"}, "no tensor 'nobody'"),
        ({}, "no weight_map"),
        (["a"], "no weight_map"),
    ],
)
def test_an_index_that_lies(tmp_path: Path, places: Any, says: str) -> None:
    (tmp_path / "folder").mkdir()
    shard(tmp_path / "1.safetensors", "a", 1)
    shard(tmp_path / "folder" / "1.safetensors", "a", 1)
    with pytest.raises(pinning.FileFormatError, match=says):
        load(index(tmp_path / "folder", places))


def test_an_index_that_is_none(tmp_path: Path) -> None:
    for content in ("", "[" * 100_000, "{", "[]", "\xff"):
        (tmp_path / "a.safetensors.index.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(pinning.FileFormatError):
            load(tmp_path)
    (tmp_path / "b.safetensors.index.json").write_text("{}")
    with pytest.raises(pinning.FileFormatError, match="several"):
        load(tmp_path)


def test_what_is_not_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path, tmp_path / "none", tmp_path / "none.json", [tmp_path / "none"]):
        with pytest.raises(FileNotFoundError):
            load(path)
    for path in ("/dev/zero", tmp_path / "pipe.json"):
        with pytest.raises(pinning.FileError):
            load(path)
    index(tmp_path, {"a": "none.safetensors"})
    with pytest.raises(FileNotFoundError):
        load(tmp_path)


# ---- while it goes on ----


def test_a_file_that_is_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write(tmp_path / "b", {"b": ("U8", [100], noise(100).tobytes())})
    path = write(tmp_path / "a", {"a": ("U8", [100], noise(100).tobytes())})

    def copy(*arguments: Any, **more: Any) -> Any:
        write(path, {"a": ("U8", [100], bytes(100))})
        os.utime(path, (1, 1))
        return loading_copy(*arguments, **more)

    loading_copy = loading.copy_parts
    monkeypatch.setattr(loading, "copy_parts", copy)
    for paths in (path, [other, path]):
        with pytest.raises(pinning.FileError, match="written while it was read"):
            load(paths)
        os.utime(path, (2, 2))
    assert descriptors_of(path) == 0


def test_ctrl_c_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(tmp_path / "1.safetensors", "a", 1)
    shard(tmp_path / "2.safetensors", "b", 1)
    files = (tmp_path / "1.safetensors", tmp_path / "2.safetensors")

    def interrupted(shard: Any, *more: Any) -> Any:
        if shard.file.path.endswith("2.safetensors"):
            raise KeyboardInterrupt
        return loading_copy(shard, *more)

    loading_copy = loading._copy
    monkeypatch.setattr(loading, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(files)
    assert [descriptors_of(path) for path in files] == [0, 0]


# ---- saving ----


class Series:
    """The attributes that a pandas Series shares with an array."""

    dtype, shape, nbytes, flags = numpy.dtype("f8"), (2,), 16, object()


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"as it was")
    array = numpy.arange(6.0).reshape(2, 3)
    for tensors, metadata, error, says in [
        ({"a": array.T}, None, pinning.LayoutError, "'a' is not contiguous"),
        ({"a": array[:, 1:]}, None, pinning.LayoutError, "'a' is not contiguous"),
        ({"a": array.astype(">f8")}, None, TypeError, "'a' is of dtype >f8"),
        ({"a": array.astype("U3")}, None, TypeError, "'a' is of dtype"),
        ({"a": [1, 2]}, None, TypeError, "'a' is a list"),
        ({"a": numpy.ma.array(array, mask=array > 3)}, None, TypeError, "'a' is a masked array"),
        ({1: array}, None, TypeError, "must be a string"),
        ({"__metadata__": array}, None, pinning.ArgumentError, "give it another name"),
        ({"a": array}, {"a": 1}, TypeError, "metadata"),
        ({"a": Series()}, None, TypeError, "'a' is a Series; it must be an array"),
        ({"\ud800": array}, None, pinning.FileFormatError, r"a name of a tensor.* '\\ud800'.* an unpaired surrogate"),
        ({"a": array}, {"a": "\udfff"}, pinning.FileFormatError, "the metadata.* an unpaired surrogate"),
    ]:
        with pytest.raises(error, match=says):
            pinning.save_file(tensors, path, metadata)  # type: ignore[arg-type]
    assert path.read_bytes() == b"as it was"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    with pytest.raises(FileNotFoundError):
        pinning.save_file({"a": array}, tmp_path / "none" / "a")
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(pinning.FileError, match=r"a folder|not a regular file"):
            pinning.save_file({"a": array}, place)
    (tmp_path / "loop").symlink_to("loop")
    for place, error in [
        (tmp_path / "loop", errno.ELOOP),
        (f"{path}/", errno.ENOTDIR),
        (f"{path}/.", errno.ENOTDIR),
        (f"{tmp_path}/new/", errno.EISDIR),
        (f"{tmp_path}/new/.", errno.EISDIR),
        (f"{tmp_path}/none/../a", errno.ENOENT),
    ]:
        with pytest.raises(OSError, match=re.escape(repr(str(place)))) as caught:
            pinning.save_file({"a": array}, place)
        assert caught.value.errno == error
        for read in (load, lambda place: pinning.copy_file(array, place)):
            with pytest.raises(OSError, match=r"directory|links"):
                read(place)
    assert path.read_bytes() == b"as it was"
    assert {each.name for each in tmp_path.iterdir()} == {"a", "pipe", "loop"}


def test_scalars_of_numpy(tmp_path: Path) -> None:
    scalars = {f"{dtype}": numpy.dtype(dtype).type(5) for dtype in ("i8", "u1", "f4", "?", "c8")}
    pinning.save_file(scalars, tmp_path / "a")
    found = load(tmp_path / "a")
    assert {name: (each.dtype, each.shape, each[()]) for name, each in found.items()} == {
        name: (each.dtype, (), each) for name, each in scalars.items()
    }


@pytest.mark.parametrize("save", [pinning.save_file, pinning.save_file_async])
def test_a_header_that_is_saved_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[..., Any]
) -> None:
    monkeypatch.setattr(headers, "LONGEST", 1000)
    path, lengths = tmp_path / "a", range(900, 960)
    refused = []
    for length in lengths:
        try:
            save({"x" * (length // 2): numpy.arange(length)}, path, {"m": "m" * (length // 2)})
        except pinning.FileFormatError as error:
            refused.append(length)
            assert re.search("a header of 1[0-9]{3} bytes; readers accept at most 1000", str(error))
        assert load(path).popitem()[1].size == length - len(refused)
    assert 0 < len(refused) < len(lengths)
    assert refused == [*lengths][-len(refused) :]


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\u65e5", "\U0001f600", "a\u00e9"])
def test_a_name_as_long_as_files_have(tmp_path: Path, letter: str) -> None:
    name = (letter * 255).encode()[:255].decode(errors="ignore")
    pinning.save_file({"a": numpy.arange(3)}, tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert load(tmp_path / name)["a"].tolist() == [0, 1, 2]


def test_names_that_no_file_has() -> None:
    array = numpy.zeros(3)
    for call in (load, lambda path: pinning.save_file({"a": array}, path), lambda path: pinning.copy_file(array, path)):
        with pytest.raises(FileNotFoundError):
            call("")
        with pytest.raises(pinning.ArgumentError, match=r"'x\\ud800'; no file has an unpaired surrogate in its name"):
            call("x\ud800")


def test_where_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    pinning.save_file({"a": numpy.arange(3)}, tmp_path / "link", fsync=True)
    assert (tmp_path / "link").is_symlink()
    assert (load(tmp_path / "a")["a"] == numpy.arange(3)).all()


def test_work_that_is_pending_for_tensors_is_saved(tmp_path: Path) -> None:
    """Of several devices, `host` among them, after a tensor that needs no wait for a device."""
    source, fake = noise(1000), FakeMemoryDevice(held=False)
    there = [pinning.arrays.device_array(1000, "u1", device=device) for device in ("host:0", fake)]
    begun = threading.Event()
    fake.held = True
    with pinning.Queue("host:0") as queue, pinning.Queue(fake) as held:
        fake.held = False  # but for this queue
        queue.call(lambda: begun.wait(60))
        for array, its_queue in zip(there, (queue, held), strict=True):
            pinning.copy_async(array.device_ptr, source, 1000, its_queue)
        timers = [threading.Timer(0.2, begun.set), threading.Timer(0.5, fake.release)]
        for timer in timers:
            timer.start()
        pinning.save_file({"a": numpy.zeros(3), **dict(zip("bc", there, strict=True))}, tmp_path / "a")
        for timer in timers:
            timer.join()
    assert all((load(tmp_path / "a")[name] == source).all() for name in "bc")


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A limit on the size of files stands in for it: a write beyond the limit fails in the thread that writes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "a").write_bytes(b"as it was")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        for save in (pinning.save_file, pinning.save_file_async):
            with pytest.raises(OSError, match="File too large") as caught:
                save({"a": noise(4 << 20)}, tmp_path / "a")
            assert caught.value.filename == str(tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "a").read_bytes() == b"as it was"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_memory_file_system_that_is_full() -> None:
    """Its pages are asked for before threads write to them, which would end the program."""
    in_a_small_file_system(f"""
import os, sys, numpy, pinning
sys.path.append({str(SUPPORT)!r})
from fake_memory import FakeMemoryDevice
device = FakeMemoryDevice(held=False)
there = pinning.arrays.to_device(numpy.ones(8 << 20, "u1"), device=device)
pinning.save_file({{"a": numpy.arange(5)}}, "/dev/shm/a")
for array in (numpy.ones(8 << 20, "u1"), there):
    for save in (pinning.save_file, lambda *what: pinning.save_file_async(*what).wait()):
        try:
            save({{"a": array}}, "/dev/shm/a")
        except OSError as error:
            assert error.errno == 28 and error.filename == "/dev/shm/a", error
        else:
            raise SystemExit("nothing says that there is no room")
        assert os.listdir("/dev/shm") == ["a"]
assert (pinning.load_file("/dev/shm/a", "host", framework="numpy")["a"] == numpy.arange(5)).all()
""")


# ---- beside the format's own library, and torch's ----


def test_beside_the_library(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy", reason="needs safetensors: pip install safetensors")
    arrays = {
        f"{dtype}.{i}": noise(24, i).view(dtype)[:3] for i, dtype in enumerate(["u1", "<i2", "<f4", "<f8", "<c8"])
    }
    arrays["none"] = numpy.empty((3, 0), "f4")
    theirs.save_file(arrays, tmp_path / "theirs", {"a": "b"})
    pinning.save_file(arrays, tmp_path / "ours", {"a": "b"})
    assert (tmp_path / "theirs").read_bytes() == (tmp_path / "ours").read_bytes()
    for found in (load(tmp_path / "theirs"), theirs.load_file(tmp_path / "ours")):
        assert {name: each.tobytes() for name, each in found.items()} == {
            name: each.tobytes() for name, each in arrays.items()
        }


def test_types_that_numpy_has_from_ml_dtypes(tmp_path: Path) -> None:
    extra = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes: pip install ml_dtypes")
    types = {"BF16": extra.bfloat16, "F8_E4M3": extra.float8_e4m3fn, "F8_E5M2": extra.float8_e5m2}
    arrays = {name: numpy.arange(6).reshape(2, 3).astype(dtype) for name, dtype in types.items()}
    pinning.save_file(arrays, tmp_path / "a")
    found = load(tmp_path / "a", framework="dlpack")
    assert {name: (each.dtype, each.shape) for name, each in found.items()} == {name: (name, (2, 3)) for name in types}
    assert (tmp_path / "a").read_bytes().endswith(b"".join(array.tobytes() for array in arrays.values()))
    with pytest.raises(TypeError, match="'a' is of dtype int4"):
        pinning.save_file({"a": numpy.zeros(4, extra.int4)}, tmp_path / "a")


def test_tensors_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    tensors = {
        "bf16": torch.randn(7, 5).to(torch.bfloat16),
        "f8": torch.randn(11).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "none": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(3, 3)),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    }
    pinning.save_file(tensors, tmp_path / "a")
    found = pinning.load_file(tmp_path / "a", torch.device("cpu"))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].tolist() == tensor.tolist()
    with pytest.raises(pinning.LayoutError):
        pinning.save_file({"a": torch.zeros(3, 2).T}, tmp_path / "a")
    whole = torch.zeros(10)
    for shared in ((whole, whole), (whole, whole[2:4]), (whole[:6], whole[5:]), (whole, whole.view(torch.int32))):
        with pytest.raises(pinning.LayoutError, match="'a' and 'b' share memory"):
            pinning.save_file(dict(zip("ab", shared, strict=True)), tmp_path / "a")
    pinning.save_file({"a": whole[:5], "b": whole[5:], "c": whole[:0], "d": whole[:0]}, tmp_path / "a")
    for strange in (torch.zeros(2, device="meta"), torch.zeros(2, 2).to_sparse()):
        with pytest.raises(TypeError, match="has no bytes"):
            pinning.save_file({"a": strange}, tmp_path / "a")


def test_pairs_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this PyTorch has no dtype of 4 bits")
    pairs = torch.arange(16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(2, 8)
    pinning.save_file({"pairs": pairs}, tmp_path / "a")
    assert load(tmp_path / "a", framework="dlpack")["pairs"].shape == (2, 16)
    found = load(tmp_path / "a", framework="torch")["pairs"]
    assert (found.dtype, found.shape) == (pairs.dtype, pairs.shape)
    assert torch.equal(found.view(torch.uint8), pairs.view(torch.uint8))
    for dtype, shape, says in (("F4", [2, 3], "length must be even"), ("F6_E2M3", [4], "which PyTorch .* has not")):
        with pytest.raises(pinning.FileFormatError, match=says):
            load(write(tmp_path / "b", {"a": (dtype, shape, bytes(3))}), framework="torch")
    with pytest.raises(pinning.LayoutError, match="4 bits"):
        pinning.save_file({"a": pairs[0, 0]}, tmp_path / "a")

# SPDX-License-Identifier: Apache-2.0
"""Slices of tensors: the same bytes as NumPy and the format's own library select, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pinning
from fake_memory import FakeMemoryDevice
from file_copies import descriptors_of, evict
from noise import noise
from pinning.files import load as loading
from pinning.files import shard
from pinning.interop.dtypes import DTYPES
from pinning.interop.dtypes import NAMES_OF_NUMPY as NAMES

ALL = slice(None)


def save(path: Path, **arrays: numpy.ndarray) -> Path:
    pinning.save_file(arrays, path)
    return path


def load(path: Any, slices: Any, **how: Any) -> dict[str, Any]:
    return pinning.load_file(path, "host", slices=slices, **{"framework": "numpy", **how})


@st.composite
def an_array_and_a_slice(draw: Callable[..., Any]) -> tuple[numpy.ndarray, Any]:
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    dtype = draw(st.sampled_from(sorted(NAMES, key=str)))
    data = noise(math.prod(shape) * dtype.itemsize, draw(st.integers(0, 99)))
    array = (data & 1 if dtype.kind == "b" else data).view(dtype).reshape(shape)
    dim = draw(st.integers(0, len(shape) - 1))
    first, last = sorted((draw(st.integers(0, shape[dim])), draw(st.integers(0, shape[dim]))))
    index = [ALL] * dim + [slice(first, last)]
    if draw(st.booleans()):
        index = [..., slice(first, last), *[ALL] * (len(shape) - dim - 1)]
    return array, tuple(index)


@given(st.lists(an_array_and_a_slice(), min_size=1, max_size=5))
@settings(max_examples=80, deadline=None)
def test_as_numpy_cuts(tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[numpy.ndarray, Any]]) -> None:
    path = save(tmp_path_factory.mktemp("file") / "a", **{f"{i}": array for i, (array, _) in enumerate(cuts)})
    for framework in ("numpy", "pinning"):
        found = load(path, {f"{i}": index for i, (_, index) in enumerate(cuts)}, framework=framework)
        for i, (array, index) in enumerate(cuts):
            there = found[f"{i}"]
            assert (there.dtype, there.shape) == (array.dtype, array[index].shape)
            got = there.copy_to_host() if framework == "pinning" else there
            assert got.tobytes() == array[index].tobytes()


@pytest.mark.parametrize("columns", [(500, 1000), (100, 999)])
def test_columns_at_the_end_of_a_file_that_several_threads_read(tmp_path: Path, columns: tuple[int, int]) -> None:
    """The share of each begins within a row."""
    array = noise(2_000_000).reshape(2000, 1000)
    part = numpy.s_[:, slice(*columns)]
    assert (load(save(tmp_path / "a", a=array), {"a": part})["a"] == array[part]).all()


def write(path: Path, dtype: str, shape: tuple[int, ...], data: bytes) -> Path:
    said = {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}
    header = json.dumps(said).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_every_dtype(tmp_path: Path, dtype: str, dim: int) -> None:
    """As NumPy slices the bits and, if it knows the dtype, the format's own library the bytes."""
    shape = (4, 8, 16)
    data = noise(512 * DTYPES[dtype].bits // 8)
    if dtype == "BOOL":
        data &= 1
    path = write(tmp_path / "a", dtype, shape, data.tobytes())
    index = (ALL,) * dim + (slice(shape[dim] // 4, shape[dim] // 4 * 3),)
    found = load(path, {"a": index}, framework="dlpack")["a"]
    assert (found.dtype, found.shape) == (dtype, (*shape[:dim], shape[dim] // 2, *shape[dim + 1 :]))
    bits = numpy.unpackbits(data, bitorder="little").reshape(*shape, DTYPES[dtype].bits)
    expected = numpy.packbits(bits[index].reshape(-1), bitorder="little").tobytes()
    assert found._bytes.copy_to_host().tobytes() == expected
    if DTYPES[dtype].numpy:
        theirs = pytest.importorskip("safetensors", reason="needs safetensors: pip install safetensors")
        with theirs.safe_open(path, "numpy") as file:
            assert file.get_slice("a")[index].tobytes() == expected


def test_as_torch_cuts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    for dtype, row in DTYPES.items():
        if not hasattr(torch, row.torch or "") or dtype == "F4":
            continue
        path = write(tmp_path / "a", dtype, (6, 8), (noise(48 * row.bits // 8) & 1).tobytes())
        whole, part = (load(path, plan, framework="torch")["a"] for plan in (None, shard(1, 1, 4)))
        assert part.dtype == whole.dtype == getattr(torch, row.torch)
        assert torch.equal(part.view(torch.uint8), whole[:, 2:4].contiguous().view(torch.uint8))


def test_shards_of_ranks(tmp_path: Path) -> None:
    arrays = {"wide": noise(4096).reshape(8, 512), "tall": noise(4096, 1).reshape(512, 8), "norm": noise(8, 2)}
    path = save(tmp_path / "a", **arrays)
    plan: Any
    for dim in (0, 1, -1):
        parts = []
        for rank in range(4):
            plan = {"wide": shard(dim, rank, 4), "tall": shard(dim, rank, 4), "norm": ...}
            parts.append(load(path, plan))
        for name in ("wide", "tall"):
            assert (numpy.concatenate([part[name] for part in parts], axis=dim) == arrays[name]).all()
            assert len({part[name].shape for part in parts}) == 1
        assert all((part["norm"] == arrays["norm"]).all() for part in parts)
    assert load(path, shard(0, 1, 2)).keys() == arrays.keys()
    chosen = load(path, lambda name, shape, dtype: shard(0, 1, 2) if len(shape) == 2 else ...)
    assert [chosen[name].shape for name in arrays] == [(4, 512), (256, 8), (8,)]
    assert load(path, lambda name, shape, dtype: ... if len(shape) == 1 and dtype == "U8" else None).keys() == {"norm"}
    assert load(path, {"tall": None}) == {}
    assert load(path, {}) == {}


def test_what_cannot_be_divided(tmp_path: Path) -> None:
    path = save(tmp_path / "a", odd=noise(9 * 7).reshape(9, 7), number=numpy.float32(1).reshape(()))
    with pytest.raises(pinning.InvalidRangeError, match=r"'odd' has the shape \(9, 7\): dimension -1, of 7, .* by 2"):
        load(path, {"odd": shard(-1, 0, 2)} | {"number": ...})
    with pytest.raises(pinning.InvalidRangeError, match=r"'number' has the shape .*without a dimension 0"):
        load(path, {"number": shard(0, 0, 1)})
    last = [load(path, {"odd": shard(0, rank, 4, "last")})["odd"] for rank in range(4)]
    assert [part.shape for part in last] == [(3, 7), (3, 7), (3, 7), (0, 7)]
    assert numpy.concatenate(last).tobytes() == noise(9 * 7).tobytes()
    rows = [load(path, {"odd": shard(0, rank, 7, "last")})["odd"].shape[0] for rank in range(7)]
    assert rows == [2, 2, 2, 2, 1, 0, 0]
    for wrong in ((0, 2, 2), (0, -1, 2)):
        with pytest.raises(pinning.InvalidRangeError, match="rank is"):
            shard(*wrong)
    with pytest.raises(pinning.ArgumentError, match="uneven"):
        shard(0, 0, 2, "pad")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "error", "says"),
    [
        ({"none": ...}, pinning.InvalidRangeError, "'none', which is in none of the files"),
        ({"a": numpy.s_[0:5]}, pinning.InvalidRangeError, "lie within the shape"),
        ({"a": numpy.s_[0:4:2]}, pinning.InvalidRangeError, "step 1"),
        ({"a": numpy.s_[3:1]}, pinning.InvalidRangeError, "lie within the shape"),
        ({"a": numpy.s_[1:2, 1:2]}, pinning.InvalidRangeError, "two dimensions"),
        ({"a": numpy.s_[:, :, :, 1:2]}, pinning.InvalidRangeError, "more dimensions"),
        ({"a": (..., ..., slice(1, 2))}, pinning.InvalidRangeError, "more dimensions"),
        ({"a": 3}, TypeError, "is 3; it must be None, a slice"),
        ({"a": "all"}, TypeError, "it must be None, a slice"),
        ({"a": slice("x", None)}, TypeError, "start"),
        ([0, 1], TypeError, "slices is"),
        ("a", TypeError, "slices is"),
    ],
)
def test_plans_that_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Any, error: type[Exception], says: str
) -> None:
    path = save(tmp_path / "a", a=noise(4 * 6 * 2).reshape(4, 6, 2))
    monkeypatch.setattr(loading, "_load", lambda *_: pytest.fail("something would be allocated"))
    with pytest.raises(error, match=says):
        load(path, plan)
    assert descriptors_of(path) == 0


def test_a_cut_inside_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "a"
    header = b'{"a":{"dtype":"F4","shape":[2,6],"data_offsets":[0,6]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(6)))
    with pytest.raises(pinning.LayoutError, match=r"'a', of F4 .* from 1 to 4 of dimension 1 begins or ends inside"):
        load(path, {"a": numpy.s_[:, 1:4]}, framework="dlpack")


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3"])
@pytest.mark.parametrize("shape", [(4, 3, 2), (2, 3, 4), (8, 5), (2, 4, 1)])
def test_every_cut_of_elements_in_less_than_a_byte(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """The right bits, or an error if a row begins or ends inside a byte."""
    bits = DTYPES[dtype].bits
    data = noise(math.prod(shape) * bits // 8)
    path = write(tmp_path / "a", dtype, shape, data.tobytes())
    elements = numpy.unpackbits(data, bitorder="little").reshape(*shape, bits)
    places = numpy.arange(data.size * 8).reshape(*shape, bits)
    for dim, length in enumerate(shape):
        for first, last in ((i, j) for j in range(length + 1) for i in range(j)):
            index = (ALL,) * dim + (slice(first, last),)
            rows = places[index].reshape(1 if last - first == length else math.prod(shape[:dim]), -1)
            if (rows[:, 0] % 8).any() or ((rows[:, -1] + 1) % 8).any():
                with pytest.raises(pinning.LayoutError, match="inside a byte"):
                    load(path, {"a": index}, framework="dlpack")
            else:
                found = load(path, {"a": index}, framework="dlpack")["a"]._bytes.copy_to_host()
                assert (found == numpy.packbits(elements[index].reshape(-1), bitorder="little")).all()


def test_only_their_bytes_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a", a=numpy.zeros((64, 1 << 16), "u1"))
    before = io_of_this_process("rchar")
    found = load(path, {"a": numpy.s_[:, 100:164]})["a"]
    assert found.shape == (64, 64)
    assert io_of_this_process("rchar") - before < 1 << 20


def io_of_this_process(what: str) -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(what)))


@pytest.mark.parametrize(("columns", "first", "last"), [(2, 0, 1), (200, 3, 50)])
def test_short_rows_take_few_reads_and_little_memory(tmp_path: Path, columns: int, first: int, last: int) -> None:
    whole = noise((8 << 20) // columns * columns).reshape(-1, columns)
    path = save(tmp_path / "a", a=whole)
    load(path, {"a": numpy.s_[:, first:last]})
    reads, memory = io_of_this_process("syscr"), peak_memory()
    found = load(path, {"a": numpy.s_[:, first:last]})["a"]
    assert io_of_this_process("syscr") - reads < 1000
    assert peak_memory() - memory < 64 << 20
    assert (found == whole[:, first:last]).all()


def peak_memory() -> int:
    """In bytes, since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def test_slices_beside_whole_tensors(tmp_path: Path) -> None:
    """The bytes adjoin in the file, and in memory, too; what follows a slice or comes before it has no rows."""
    arrays = {name: noise(64 * 256, seed).reshape(64, 256) for seed, name in enumerate("abcdef")}
    path = save(tmp_path / "a", **arrays)
    plan = {"a": ALL, "b": numpy.s_[:, :128], "c": ALL, "d": numpy.s_[:, 128:], "e": numpy.s_[:, :64], "f": ALL}
    found = load(path, plan)
    for name, index in plan.items():
        assert (found[name] == arrays[name][index]).all()


@pytest.mark.parametrize("cold", [False, True])
def test_large_slices(tmp_path: Path, cold: bool) -> None:
    """More than a block of a ring, in contiguous parts of many sizes."""
    arrays = {f"{width}": noise(6 << 20, width).reshape(-1, width) for width in (3, 256, 8192, 1 << 20)}
    path = save(tmp_path / "a", **arrays)
    if cold:
        evict(path)
    found = load(path, {name: shard(1, 1, 3, "last") for name in arrays})
    for name, array in arrays.items():
        each = -(-array.shape[1] // 3)
        assert (found[name] == array[:, each : 2 * each]).all()


# ---- several devices ----


def test_a_dict_of_devices(tmp_path: Path) -> None:
    path = save(tmp_path / "a", a=noise(24).reshape(4, 6), b=noise(5, 1))
    found = pinning.load_file(path, {"host": {"a": numpy.s_[:, 1:3]}}, framework="numpy")
    assert found.keys() == {"host"}
    assert found["host"].keys() == {"a"}
    assert (found["host"]["a"] == noise(24).reshape(4, 6)[:, 1:3]).all()
    assert pinning.load_file(path, {"host": None}, framework="numpy")["host"]["b"].tobytes() == noise(5, 1).tobytes()
    for device, error, says in [
        ({}, pinning.ArgumentError, "empty"),
        ({"host": None, "cpu": None}, pinning.ArgumentError, "'host' and 'cpu', which are the same device"),
        ({"host": "a"}, TypeError, "plan of host"),
        ({"host": {"c": ...}}, pinning.InvalidRangeError, "'c', which is in none"),
        ({FakeMemoryDevice(held=False): None, "host": {"c": ...}}, pinning.InvalidRangeError, "'c', which is in none"),
        ({"none:0": None}, pinning.ArgumentError, "none"),
    ]:
        with pytest.raises(error, match=says):
            pinning.load_file(path, device, framework="pinning")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="leave out"):
        pinning.load_file(path, {"host": None}, slices={}, framework="numpy")  # type: ignore[call-overload]
    assert descriptors_of(path) == 0

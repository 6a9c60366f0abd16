# SPDX-License-Identifier: Apache-2.0
"""Copies from files on the stand-in: which bytes arrive, and each call failing in turn."""

from __future__ import annotations

import errno
import gc
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest

import pinning
from fake_device import Background, in_threads
from file_copies import *  # noqa: F403
from file_copies import SIZE, descriptors_of, evict, fetch, held_back
from noise import noise
from pinning import MemoryKind, arrays
from pinning.conformance.faults import eventually
from pinning.copies import costs
from pinning.files import columns, shard, trim_snapshots
from pinning.files import load as loading
from pinning.files import snapshot as snapshots
from pinning.memory import default_pool
from pinning.queues import default_queue
from standins.standin import StandIn
from standins.work import failing_in_turn

UNKNOWN = 999  # CUDA_ERROR_UNKNOWN


@pytest.fixture
def queue(other: pinning.Queue) -> pinning.Queue:
    return other


def some_arrays() -> dict[str, numpy.ndarray]:
    """Arrays of several sizes, most of them not aligned in a file."""
    sizes = [1, 3, 16, 4096, 70_001, 5 << 20, 7]
    found: dict[str, numpy.ndarray] = {f"{i}": noise(size, i) for i, size in enumerate(sizes)}
    return {**found, "floats": noise(800).view(numpy.float64).reshape(10, 10), "none": numpy.empty((0, 3), "i2")}


def test_tensors_of_adjacent_allocations(queue: pinning.Queue, tmp_path: Path) -> None:
    """Small allocations lie next to each other, and the driver refuses one copy of two of them."""
    whole = {f"{i}": noise(1 << 16, i) for i in range(4)}
    found = {}
    for some in ("01", "23"):
        pinning.save_file({name: whole[name] for name in some}, tmp_path / some)
        found |= pinning.load_file(tmp_path / some, "cuda:0", queue, framework="pinning")
    assert found["2"].device_ptr == found["1"].device_ptr + (1 << 16)
    pinning.save_file(found, tmp_path / "all")
    again = pinning.load_file(tmp_path / "all", "host", framework="numpy")
    assert all((again[name] == array).all() for name, array in whole.items())


@pytest.mark.parametrize("cold", [False, True])
def test_tensors_to_the_device_and_back(queue: pinning.Queue, tmp_path: Path, cold: bool) -> None:
    whole = some_arrays()
    path = tmp_path / "a.safetensors"
    pinning.save_file(whole, path, {"made": "here"})
    if cold:
        evict(path)
    found = pinning.load_file(path, "cuda:0", queue, framework="pinning")
    assert found.keys() == whole.keys()
    for name, array in whole.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert (found[name].copy_to_host() == array).all()
        assert found[name].nbytes == 0 or found[name].device_ptr % 16 == 0
    pinning.save_file(found, tmp_path / "b.safetensors", {"made": "here"})
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    mixed = {**found, "0": whole["0"], "floats": whole["floats"]}
    pinning.save_file(mixed, tmp_path / "c.safetensors", {"made": "here"})
    assert (tmp_path / "c.safetensors").read_bytes() == path.read_bytes()
    assert descriptors_of(path) == 0


@pytest.mark.parametrize("staged", [True, False])
def test_slices_in_rows(queue: pinning.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: bool) -> None:
    whole = {f"{width}": noise(3 << 20, width).reshape(-1, width) for width in (2, 256, 8192)}
    path, plan = (
        tmp_path / "a.safetensors",
        {name: numpy.s_[:, 1 : array.shape[1] - 7] for name, array in whole.items()},
    )
    plan["2"] = numpy.s_[:, 1:]
    pinning.save_file(whole, path)
    if not staged:
        pinning.copies.trim_staging()
        monkeypatch.setattr(costs, "staging_bytes", 0)
    found = pinning.load_file(path, "cuda:0", queue, slices=plan, framework="pinning")
    assert all((found[name].copy_to_host() == whole[name][part]).all() for name, part in plan.items())


def test_loads_at_once(queue: pinning.Queue, tmp_path: Path) -> None:
    whole = some_arrays()
    for i in range(3):
        pinning.save_file({f"{i}.{name}": array for name, array in whole.items()}, tmp_path / f"{i}.safetensors")
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(pinning.load_file, tmp_path, "cuda:0", framework="pinning") for _ in range(4)]
        for load in loads:
            for name, array in load.result().items():
                assert (array.copy_to_host() == whole[name[2:]]).all()


@pytest.mark.parametrize("two", [False, True])
def test_ctrl_c_in_a_load(queue: pinning.Queue, second: None, tmp_path: Path, small_ring: None, two: bool) -> None:
    """Ctrl-C arrives while the main thread waits for copies that a queue holds back."""
    path = tmp_path / "a.safetensors"
    pinning.save_file({"a": noise(SIZE)}, path)
    main, go = threading.get_ident(), threading.Event()
    held = (default_queue("cuda:0") if two else queue).call(lambda: go.wait(600))

    def interrupt() -> None:
        assert eventually(lambda: descriptors_of(path) > 0)
        time.sleep(0.2)  # by then it waits; if not, Ctrl-C arrives earlier in the load
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        go.set()

    interrupting = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        if two:
            pinning.load_file(path, {"cuda:0": None, "cuda:1": None}, framework="pinning")
        else:
            pinning.load_file(path, "cuda:0", queue, framework="pinning")
    interrupting.result()
    held.wait()
    for each in (queue, default_queue("cuda:0"), default_queue("cuda:1")):
        each.synchronize()
    assert eventually(lambda: descriptors_of(path) == 0)


def test_a_save_that_fails_leaves_nothing(standin: StandIn, queue: pinning.Queue, tmp_path: Path) -> None:
    pinning.save_file(some_arrays(), tmp_path / "a.safetensors")
    found = pinning.load_file(tmp_path / "a.safetensors", "cuda:0", queue, framework="pinning")
    names = ("cuMemcpyBatchAsync", "cuMemcpyAsync", "cuLaunchKernel")
    standin.configure(";".join(f"fail={name}:1:{UNKNOWN}" for name in names))
    with pytest.raises(pinning.VendorError):
        pinning.save_file(found, tmp_path / "b.safetensors")
    standin.configure()
    assert {each.name for each in tmp_path.iterdir()} == {"a.safetensors", "calls"}


def test_where_nothing_can_be_staged(queue: pinning.Queue, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinning.copies.trim_staging()
    monkeypatch.setattr(costs, "staging_bytes", 0)
    with pinning.alloc(SIZE, device=queue.device) as there:
        copy = pinning.copy_file_async(there, file, queue=queue)
        assert copy.path == "plain"
        copy.wait()
        assert (fetch(there, queue) == noise(SIZE)).all()
        with held_back(queue):
            cancelled = pinning.copy_file_async(numpy.zeros(SIZE, numpy.uint8), file, queue=queue)
            cancelled.cancel()
        with pytest.raises(pinning.FileError, match="cancelled"):
            cancelled.wait()


def test_each_call_failing_leaves_the_queue_usable(standin: StandIn, queue: pinning.Queue, file: Path) -> None:
    with pinning.alloc(SIZE, device="cuda:0") as there:
        for _ in failing_in_turn(standin, lambda: pinning.copy_file(there, file, queue=queue)):
            with suppress(pinning.VendorError):  # the unreported error of a query
                queue.synchronize()
        pinning.copy_file(there, file, queue=queue)
        assert (fetch(there, queue) == noise(SIZE)).all()
    assert eventually(lambda: descriptors_of(file) == 0)


# ---- several devices ----


@pytest.fixture
def second(queue: pinning.Queue) -> Iterator[None]:
    yield
    gc.collect()
    arrays.synchronize("cuda:1")
    arrays.default_stream("cuda:1").close()
    default_pool(pinning.device("cuda:1"), MemoryKind.DEVICE).trim_to(0)


@pytest.mark.parametrize("peers", [True, False])
def test_two_devices(standin: StandIn, second: None, tmp_path: Path, peers: bool) -> None:
    """Each device gets what its plan says. What both need is read once if they have peer access."""
    if not peers:
        standin.configure("no_peers")
    whole = {f"{i}": noise(3 << 20, i).reshape(1 << 10, -1) for i in range(4)} | {"norm": noise(77)}
    path = tmp_path / "a.safetensors"
    pinning.save_file(whole, path)
    found = pinning.load_file(path, {"cuda:0": None, "cuda:1": None}, framework="pinning")
    for name in ("cuda:0", "cuda:1"):
        assert found[name].keys() == whole.keys()
        for each, array in found[name].items():
            assert array.device.name == name
            assert (array.copy_to_host() == whole[each]).all()
    for dim in (0, 1):
        plans = {
            f"cuda:{i}": {"0": shard(dim, i, 2), "1": ..., "norm": ..., "2": numpy.s_[5:6] if i else None}
            for i in (0, 1)
        }
        parts = pinning.load_file(path, plans, framework="pinning")
        halves = [parts[f"cuda:{i}"]["0"].copy_to_host() for i in (0, 1)]
        assert (numpy.concatenate(halves, axis=dim) == whole["0"]).all()
        assert "2" not in parts["cuda:0"]
        assert (parts["cuda:1"]["2"].copy_to_host() == whole["2"][5:6]).all()
        for i in (0, 1):
            assert (parts[f"cuda:{i}"]["1"].copy_to_host() == whole["1"]).all()
            assert (parts[f"cuda:{i}"]["norm"].copy_to_host() == whole["norm"]).all()
    assert descriptors_of(path) == 0
    del found, parts
    gc.collect()


@pytest.mark.parametrize("peers", [True, False])
def test_columns_for_two_devices(
    standin: StandIn, second: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peers: bool
) -> None:
    """Rows are read as a whole and cut on the devices, in blocks by turns, unless these do not reach each other."""
    monkeypatch.setattr(columns, "SMALLEST", 100_000)
    monkeypatch.setattr(columns, "BLOCK", 70_000)
    if not peers:
        standin.configure("no_peers")
    shapes = {"wide": (333, 1000), "deep": (7, 40, 3000), "tiny": (10, 10), "long": (3, 200_000)}
    whole = {name: noise(math.prod(shape), len(name)).reshape(shape) for name, shape in shapes.items()}
    path = tmp_path / "a.safetensors"
    pinning.save_file(whole, path)
    slices = [
        {"wide": numpy.s_[:, 10:600], "deep": numpy.s_[:, :, :2999], "tiny": numpy.s_[:, :5], "long": numpy.s_[:, :9]},
        {"wide": numpy.s_[:, 600:], "deep": numpy.s_[:, 3:9], "tiny": numpy.s_[:, 2:], "long": numpy.s_[:, 9:]},
        {"wide": numpy.s_[:, 300:600], "deep": numpy.s_[:, :, 1:], "tiny": ..., "long": ...},
    ]
    for chosen in (slices[:2], slices[1:], [slices[0], slices[0]]):
        plans = {f"cuda:{i}": plan for i, plan in enumerate(chosen)}
        found = pinning.load_file(path, plans, framework="pinning")
        for name, plan in plans.items():
            for each, index in plan.items():
                assert (found[name][each].copy_to_host() == whole[each][index]).all(), (name, each)
    assert bool(standin.calls("cuMemcpy2DAsync")) == peers
    standin.configure("fail=cuMemAlloc:4:2")  # a block's, for which there is no room
    found = pinning.load_file(path, plans, framework="pinning")
    assert (found["cuda:1"]["wide"].copy_to_host() == whole["wide"][:, 10:600]).all()
    assert standin.calls("cuMemcpy2DAsync") == []
    assert descriptors_of(path) == 0
    del found
    gc.collect()


@pytest.mark.parametrize(
    ("change", "says"),
    [(lambda path: os.truncate(path, SIZE // 2), ""), (lambda path: os.utime(path, ns=(0, 0)), "while it was read")],
    ids=["cut short", "written"],
)
def test_a_file_that_changes_while_two_load_it(
    second: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_ring: None, change: Any, says: str
) -> None:
    path = tmp_path / "a.safetensors"
    pinning.save_file({f"{i}": noise(SIZE // 4, i) for i in range(4)}, path)

    def late(*arguments: object, **more: object) -> object:
        change(path)
        return copy_parts(*arguments, **more)

    copy_parts = loading.copy_parts
    monkeypatch.setattr(loading, "copy_parts", late)
    with pytest.raises(pinning.FileError, match=says):
        pinning.load_file(path, {"cuda:0": None, "cuda:1": None}, framework="pinning")
    assert eventually(lambda: descriptors_of(path) == 0)


def test_each_call_failing_in_a_load_for_two(
    standin: StandIn, queue: pinning.Queue, second: None, tmp_path: Path
) -> None:
    """Nothing is half loaded, and the next load works. The failing calls include the allocations on both devices."""
    whole = {f"{i}": noise(4 << 20, i).reshape(1 << 10, -1) for i in range(2)}
    path = tmp_path / "a.safetensors"
    pinning.save_file(whole, path)
    plans = {f"cuda:{i}": {"0": ..., "1": shard(1, i, 2)} for i in (0, 1)}
    failed: set[str] = set()
    found: dict[str, Any] = {}
    for error in failing_in_turn(standin, lambda: found.update(pinning.load_file(path, plans, framework="pinning"))):
        for name in plans:
            with suppress(pinning.VendorError):  # the error of a query
                default_queue(name).synchronize()
        if isinstance(error, pinning.VendorError):
            failed.add(error.call)
        elif error is None:
            for i, name in enumerate(plans):
                assert (found[name]["0"].copy_to_host() == whole["0"]).all()
                assert (found[name]["1"].copy_to_host() == numpy.split(whole["1"], 2, axis=1)[i]).all()
        found.clear()
        gc.collect()
        for i in (0, 1):
            arrays.synchronize(f"cuda:{i}")
            default_pool(pinning.device(f"cuda:{i}"), MemoryKind.DEVICE).trim_to(0)
        assert eventually(lambda: descriptors_of(path) == 0)
    assert any(call.startswith("cuMemAlloc") for call in failed)


# ---- saves in the background ----


@pytest.mark.parametrize("room", [64 << 20, 3 << 20])
def test_a_snapshot(queue: pinning.Queue, tmp_path: Path, room: int) -> None:
    """The tensors may be overwritten once the call has returned, whether or not all of them fit in the arena."""
    whole = {**some_arrays(), "large": noise(9 << 20, 9)}
    pinning.save_file(whole, tmp_path / "a")
    found = pinning.load_file(tmp_path / "a", "cuda:0", queue, framework="pinning")
    with pinning.Arena(room, "cuda:0") as arena:
        for turn in range(3):
            event = pinning.save_file_async(found, tmp_path / "b", arena=arena)
            if turn == 2:
                for array in found.values():
                    array[...] = 0
                arrays.synchronize("cuda:0")
            event.wait()
            assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        assert eventually(lambda: arena.allocated == 0)


def test_the_arena_that_is_kept(queue: pinning.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = some_arrays()
    pinning.save_file(whole, tmp_path / "a")
    found = pinning.load_file(tmp_path / "a", "cuda:0", queue, framework="pinning")

    def copying(*arguments: Any) -> Any:
        assert trim_snapshots() == 0, "it is in use"
        return copy(*arguments)

    copy = snapshots.copy_batch_async
    monkeypatch.setattr(snapshots, "copy_batch_async", copying)
    for _ in range(3):
        pinning.save_file_async(found, tmp_path / "b").wait()
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert trim_snapshots() >= 5 << 20
    assert trim_snapshots() == 0
    pinning.save_file_async(found, tmp_path / "b").wait()
    assert trim_snapshots() > 0


def test_first_saves_at_once_keep_one_arena(
    queue: pinning.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_snapshots()
    found = arrays.to_device(noise(2 << 20), device="cuda:0")
    before, made, both = len(pinning.regions("cuda:0")), [], threading.Barrier(2)

    def make(*arguments: Any, **more: Any) -> pinning.Arena:
        arena = pinning.Arena(*arguments, **more)
        made.append(arena)
        both.wait(60)
        return arena

    monkeypatch.setattr(snapshots, "Arena", make)
    in_threads(lambda i: pinning.save_file_async({"a": found}, tmp_path / f"{i}").wait(), range(2))
    assert sum(not arena.closed for arena in made) == 1
    assert eventually(lambda: trim_snapshots() > 0)
    assert [each for each in made if not each.closed] == []
    assert len(pinning.regions("cuda:0")) == before


def test_a_save_whose_arena_is_trimmed(queue: pinning.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two steps of a save: choosing the arena, and allocating in it."""
    found = arrays.to_device(noise(2 << 20), device="cuda:0")
    pinning.save_file_async({"a": found}, tmp_path / "a").wait()
    block = snapshots._block

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert eventually(lambda: trim_snapshots() > 0)
        return block(*arguments)

    monkeypatch.setattr(snapshots, "_block", late)
    pinning.save_file_async({"a": found}, tmp_path / "b").wait()
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert eventually(lambda: trim_snapshots() > 0)


def test_a_snapshot_whose_writes_fail_leaves_the_file_as_it_was(
    queue: pinning.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files, set once the new file has its size, stands in for a disk that fails."""
    found = arrays.to_device(noise(4 << 20), device="cuda:0")
    (tmp_path / "a").write_bytes(b"as it was")
    before, block = resource.getrlimit(resource.RLIMIT_FSIZE), snapshots._block

    def limited(*arguments: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        return block(*arguments)

    monkeypatch.setattr(snapshots, "_block", limited)
    try:
        pinning.save_file_async({"a": found}, tmp_path / "a").wait()
    except pinning.FileError as error:
        assert error.errno == errno.EFBIG
        assert (tmp_path / "a").read_bytes() == b"as it was"
    else:  # in memory, where the limit does not count
        assert (tmp_path / "a").stat().st_size > 4 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert eventually(lambda: trim_snapshots() > 0)


def test_a_snapshot_that_fails_leaves_nothing(standin: StandIn, queue: pinning.Queue, tmp_path: Path) -> None:
    pinning.save_file(some_arrays(), tmp_path / "a")
    found = pinning.load_file(tmp_path / "a", "cuda:0", queue, framework="pinning")
    with pinning.Arena(16 << 20, "cuda:0") as arena:
        arena.wait()
        before = regions_of(arena)
        names = ("cuMemcpyBatchAsync", "cuMemcpyAsync", "cuLaunchKernel", "cuMemcpyDtoHAsync_v2")
        standin.configure(";".join(f"fail={name}:1:{UNKNOWN}" for name in names))
        with pytest.raises(pinning.VendorError):
            pinning.save_file_async(found, tmp_path / "b", arena=arena)
        standin.configure()
        with suppress(pinning.VendorError):  # the error of a query
            queue.synchronize()
        assert eventually(lambda: arena.allocated == 0 and regions_of(arena) == before)
    assert {each.name for each in tmp_path.iterdir()} == {"a", "calls"}


def regions_of(arena: pinning.Arena) -> list[int]:
    gc.collect()
    return [region.references for region in pinning.pinned_map("cuda:0").overlapping(arena.ptr, arena.nbytes)]

# SPDX-License-Identifier: Apache-2.0
"""Copies from files on the stand-in: which bytes arrive, and each call failing in turn.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy
import pytest

import pinning
from file_copies import *  # noqa: F403
from file_copies import SIZE, descriptors_of, evict, fetch, held_back
from noise import noise
from pinning import MemoryKind, arrays
from pinning.conformance.faults import eventually
from pinning.copies import costs
from pinning.memory import default_pool
from standins.standin import StandIn

UNKNOWN = 999  # CUDA_ERROR_UNKNOWN


@pytest.fixture
def queue(standin: StandIn) -> Iterator[pinning.Queue]:
    with pinning.Queue("cuda:0") as queue:
        yield queue
    gc.collect()
    arrays.synchronize("cuda:0")
    arrays.default_stream("cuda:0").close()
    default_pool(queue.device, MemoryKind.DEVICE).trim_to(0)
    pinning.copies.trim_staging()


def some_arrays() -> dict[str, numpy.ndarray]:
    """Most of them not aligned in a file."""
    sizes = [1, 3, 16, 4096, 70_001, 5 << 20, 7]
    found: dict[str, numpy.ndarray] = {f"{i}": noise(size, i) for i, size in enumerate(sizes)}
    return {**found, "floats": noise(800).view(numpy.float64).reshape(10, 10), "none": numpy.empty((0, 3), "i2")}


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


def test_loads_at_once(queue: pinning.Queue, tmp_path: Path) -> None:
    whole = some_arrays()
    for i in range(3):
        pinning.save_file({f"{i}.{name}": array for name, array in whole.items()}, tmp_path / f"{i}.safetensors")
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(pinning.load_file, tmp_path, "cuda:0", framework="pinning") for _ in range(4)]
        for load in loads:
            for name, array in load.result().items():
                assert (array.copy_to_host() == whole[name[2:]]).all()


def test_ctrl_c_in_a_load(queue: pinning.Queue, tmp_path: Path, small_ring: None) -> None:
    """The main thread waits for copies that a queue holds back, and Ctrl-C comes."""
    path = tmp_path / "a.safetensors"
    pinning.save_file({"a": noise(SIZE)}, path)
    main, go = threading.get_ident(), threading.Event()
    held = queue.call(lambda: go.wait(600))

    def interrupt() -> None:
        assert eventually(lambda: descriptors_of(path) > 0)
        time.sleep(0.2)  # by then it waits; if not, Ctrl-C comes earlier in the load
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        go.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pinning.load_file(path, "cuda:0", queue, framework="pinning")
    thread.join()
    held.wait()
    queue.synchronize()
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
        for n in count(1):
            standin.configure(f"fail=*:{n}:{UNKNOWN}")
            refused = None
            try:
                pinning.copy_file(there, file, queue=queue)
            except pinning.VendorError as error:
                refused = error
            calls = standin.calls()
            standin.configure()
            with suppress(pinning.VendorError):  # of a call that only asks, whose error nobody has heard yet
                queue.synchronize()
            if n > len(calls):
                assert refused is None
                break
        pinning.copy_file(there, file, queue=queue)
        assert (fetch(there, queue) == noise(SIZE)).all()
    assert eventually(lambda: descriptors_of(file) == 0)

# SPDX-License-Identifier: Apache-2.0
"""`pinning.ray`: what of Ray's object store is locked, and when."""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import pytest

import pinning
from fake_device import FakeDevice
from pinning import VendorError

pytest.importorskip("ray", reason="needs Ray: pip install 'pinning[ray]'")

from pinning import ray as of_ray

MINUTE = 60
SMALLEST = 1000


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def store(device: FakeDevice, caplog: pytest.LogCaptureFixture) -> of_ray._Store:
    caplog.set_level(logging.WARNING, "pinning.ray")
    return of_ray._Store(device, SMALLEST)


@pytest.fixture
def memory(tmp_path: Path) -> memoryview:
    """A mapping such as that of the object store."""
    file = tmp_path / "plasmaA1b2C3"
    file.write_bytes(bytes(1 << 20))
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0))


def address_of(part: memoryview) -> int:
    return int(numpy.frombuffer(part, "u1").ctypes.data)


def use(store: of_ray._Store, part: memoryview) -> None:
    store.use((part, b"metadata", None))


def wait_for(device: FakeDevice, expected: list[memoryview]) -> None:
    """Exactly these are locked soon."""
    wanted = [(address_of(part), part.nbytes) for part in expected]
    end = time.monotonic() + MINUTE
    while [(region.start, region.size) for region in pinning.pinned_map(device)] != wanted:
        assert time.monotonic() < end, (pinning.regions(device), wanted)
        time.sleep(0.005)


def test_objects_are_locked_as_they_are_used(
    store: of_ray._Store, device: FakeDevice, memory: memoryview, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = memory[64:100_000], memory[100_032:300_000]
    use(store, first)
    wait_for(device, [first])
    use(store, second)
    wait_for(device, [first, second])
    calls = list(device.calls)
    use(store, first)
    use(store, first[100:50_000])
    use(store, memory[400_000:400_500])
    store.use((None, b"an error"))
    wait_for(device, [first, second])
    assert device.calls == calls and not caplog.records


def test_an_object_in_the_place_of_others_has_their_locks_undone(
    store: of_ray._Store, device: FakeDevice, memory: memoryview, caplog: pytest.LogCaptureFixture
) -> None:
    old = [memory[0:50_000], memory[50_000:100_000], memory[100_000:150_000]]
    for each in old:
        use(store, each)
    wait_for(device, old)
    new = memory[40_000:90_000]
    use(store, new)
    wait_for(device, [new, old[2]])
    use(store, old[0])
    wait_for(device, [old[0], old[2]])
    assert not caplog.records


def test_other_memory_is_left(store: of_ray._Store, device: FakeDevice, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(bytes(10_000))
    with (tmp_path / "other").open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        store.use((mapped, b""))
    use(store, memoryview(bytearray(10_000)))
    assert store._extents == {} and device.calls == []


def test_what_is_refused_is_said_once(
    store: of_ray._Store, device: FakeDevice, memory: memoryview, caplog: pytest.LogCaptureFixture
) -> None:
    device.fail(VendorError("fakeRegister", 2, "FAKE_OUT_OF_MEMORY"))
    use(store, memory[0:10_000])
    end = time.monotonic() + MINUTE
    while not caplog.records:
        assert time.monotonic() < end
        time.sleep(0.005)
    use(store, memory[0:10_000])
    other = memory[20_000:30_000]
    use(store, other)
    wait_for(device, [other])
    (record,) = caplog.records
    assert "FAKE_OUT_OF_MEMORY" in record.getMessage()


def test_a_worker_without_gpus_locks_nothing(monkeypatch: pytest.MonkeyPatch, memory: memoryview) -> None:
    class Context:
        def get_accelerator_ids(self) -> dict[str, list[str]]:
            return {"GPU": []}

    monkeypatch.setattr(of_ray.ray, "get_runtime_context", Context)
    store = of_ray._Store(None, SMALLEST)
    use(store, memory[0:10_000])
    assert store._extents == {}


def test_a_ray_that_is_not_known_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(of_ray, "_HOOKED", "gone_by_then")
    of_ray.setup()
    assert "nothing is locked: Ray" in caplog.text


def test_with_ray_itself() -> None:
    with pinning.lock(bytearray(6 << 20), device="host:0"):
        pass  # or it is skipped
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets' paths must be short
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    try:
        done = subprocess.run(
            [sys.executable, Path(__file__).parent / "with_ray.py", folder],
            capture_output=True,
            text=True,
            timeout=8 * MINUTE,
            env=environment,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ray: all right" in done.stdout

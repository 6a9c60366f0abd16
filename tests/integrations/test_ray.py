# SPDX-License-Identifier: Apache-2.0
"""`pinning.ray`: how it changes Ray, and the effect on a real one. The store of locks has tests of its own."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import pinning
from pinning import arrays

pytest.importorskip("ray", reason="needs Ray: pip install ray")

from ray._private import serialization

from pinning import ray as of_ray

MINUTE = 60


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore Ray after each test."""
    monkeypatch.setattr(of_ray, "_store", None)
    monkeypatch.setattr(serialization, of_ray._HOOKED, getattr(serialization, of_ray._HOOKED))
    yield
    if of_ray._store is not None:
        of_ray._store.close()


def test_a_worker_without_gpus_locks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def get_accelerator_ids(self) -> dict[str, list[str]]:
            return {"GPU": []}

    monkeypatch.setattr(of_ray.ray, "get_runtime_context", Context)
    assert of_ray._device_of_worker() is None


def test_it_is_set_up_once_and_then_changed() -> None:
    before = getattr(serialization, of_ray._HOOKED)
    of_ray.setup("host:0")
    hooked, store = getattr(serialization, of_ray._HOOKED), of_ray._store
    assert hooked.__wrapped__ is before and store is not None
    of_ray.setup("host:0", smallest=5)
    assert getattr(serialization, of_ray._HOOKED) is hooked and of_ray._store is not store
    with pytest.raises(pinning.ArgumentError, match="no device 'none:0'"):
        of_ray.setup("none:0")


def test_a_ray_that_is_not_known_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pinning.ray")
    monkeypatch.setattr(of_ray, "_HOOKED", "gone_by_then")
    of_ray.setup()
    assert "nothing is locked: Ray" in caplog.text and of_ray._store is None


def test_what_is_put_comes_through_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    there = arrays.to_device(numpy.arange(24.0).reshape(4, 6))[:, ::2]
    put: list[numpy.ndarray] = []
    monkeypatch.setattr(of_ray.ray, "put", put.append)
    of_ray.put(there)
    assert (put[0] == numpy.arange(24.0).reshape(4, 6)[:, ::2]).all()
    assert pinning.is_locked(put[0], device=there.device)
    with pytest.raises(TypeError):
        of_ray.put([1, 2])


def test_with_ray_itself() -> None:
    with pinning.lock(bytearray(6 << 20), device="host:0"):
        pass  # otherwise conftest.py skips the test
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

# SPDX-License-Identifier: Apache-2.0
"""Copies from files on the host."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import pinning
from child_process import run_in_child
from fake_memory import FakeMemoryDevice, FakeQueue
from file_copies import *  # noqa: F403
from file_copies import SIZE, fetch, held_back
from noise import noise


@pytest.fixture
def queue() -> Iterator[pinning.Queue]:
    with pinning.Queue("host") as queue:
        yield queue
    pinning.copies.trim_staging()


@pytest.mark.parametrize("stages", [True, False])
def test_a_device_written_in_python(file: Path, stages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If its queues cannot wait for words, the caller reads the file; for host memory, the queue calls a function."""
    monkeypatch.setattr(FakeQueue, "waits_for_values", stages)
    device = FakeMemoryDevice(held=False)
    array = numpy.zeros(SIZE, numpy.uint8)
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        copy = pinning.copy_file(there, file, queue=queue)
        assert copy.path == ("staged" if stages else "plain")
        assert (fetch(there, queue) == noise(SIZE)).all()
        pinning.copy_file(array, file, queue=queue)
        assert (array == noise(SIZE)).all()
        os.truncate(file, SIZE // 2)
        with pytest.raises(pinning.InvalidRangeError):
            pinning.copy_file(array, file, queue=queue)
        queue.synchronize()
    device.let_go()
    gc.collect()
    pinning.copies.trim_staging()
    pinning.pinned_map(device).close()


def test_a_fork_while_a_file_is_copied(queue: pinning.Queue, file: Path, small_ring: None) -> None:
    array = numpy.zeros(SIZE, numpy.uint8)

    def child() -> None:
        mine = numpy.zeros(SIZE, numpy.uint8)
        with pinning.Queue("host") as queue_of_child:
            pinning.copy_file(mine, file, queue=queue_of_child)
        assert (mine == noise(SIZE)).all()
        with pytest.raises(pinning.PinningError, match="fork"):
            copy.wait()

    with held_back(queue):
        copy = pinning.copy_file_async(array, file, queue=queue)
        run_in_child(child)
    copy.wait()
    assert (array == noise(SIZE)).all()

# SPDX-License-Identifier: Apache-2.0
"""A user's program under mypy --strict: public names have types, and a name that does not exist is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="needs mypy: pip install mypy")

PROGRAM = """
import asyncio
import mmap
from multiprocessing.shared_memory import SharedMemory

import numpy
from numpy.typing import NDArray

import pinning


async def copied(memory: pinning.Allocation, array: pinning.Buffer) -> None:
    copy = pinning.copy_async(memory, array)
    await asyncio.create_task(copy)
    await pinning.Queue().record()


array = numpy.zeros(1000)
with pinning.Queue() as queue, pinning.lock(array) as lock:
    memory, ready = queue.alloc(array.nbytes)
    there: int = memory.ptr + lock.device_ptr
    ready.wait()
    asyncio.run(copied(memory, array))
    queue.free(memory)
host: pinning.Allocation = pinning.alloc(1000, "host")
shared, _ = queue.alloc(1000, "host", pinning.Pool("host", "host"))
pin: pinning.torch.Pin = pinning.torch.pin([])
pinning.ray.setup("cuda:0")
version: str = pinning.__version__
loaded: dict[str, NDArray[numpy.generic]] = pinning.load_file("x.safetensors", "host", framework="numpy")
on_device: dict[str, pinning.arrays.DeviceArray] = pinning.load_file("x.safetensors", framework="pinning")
plan = {"up": pinning.files.shard(0, 1, 2), "norm": ..., "down": numpy.s_[2:3, :]}
dlpack = pinning.load_file("x.safetensors", "host", slices=plan, framework="dlpack")
both = [numpy.from_dlpack(dlpack["up"]), numpy.from_dlpack(on_device["x"])]
for row in on_device["x"]:
    print(row)


class Mine:
    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        return ptr

    def data_unlock(self, ptr: int) -> None: ...

    def is_pinned_ptr(self, ptr: int) -> tuple[int, int, int] | None:
        return None


segment = SharedMemory(create=True, size=8)
with pinning.locked(array, bytearray(8), mmap.mmap(-1, 8), memoryview(b"x"), segment, (array.ctypes.data, 8)), \
        pinning.lock(host, device=Mine()) as held:
    pinning.copy(memory, held)
    pinning.find(array.ctypes.data)
    pinning.unlock(held)
"""


def findings(folder: Path, program: str) -> list[str]:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", folder / "cache"]
    done = subprocess.run([*command, "program.py"], cwd=folder, capture_output=True, text=True, timeout=900)
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(1800)
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    assert findings(tmp_path, PROGRAM) == []
    wrong = (
        'import pinning\npinning.typo\npinning.torch.typo\npinning.alloc(8, "hots")\n'
        'pinning.ray.setup(smallest="x")\nmemory: int = pinning.Queue().alloc(8)[0]\n'
        'pinning.lock("text")\npinning.copy([1], b"2")\npinning.PinnedMap(8)\n'
        'names: list[str] = pinning.load_file("x", framework="numpy")\n'
    )
    found = findings(tmp_path, wrong)
    assert [line.split(":")[1] for line in found] == ["2", "3", "4", "5", "6", "7", "8", "9", "10"], found

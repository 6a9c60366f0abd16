# SPDX-License-Identifier: Apache-2.0
"""A program whose daemon threads go on submitting while it exits: submits_at_exit.py DEVICE OPERATION.

What their pending work uses must live until the process ends, whatever these threads drop meanwhile. The pending work
begins with a function that sleeps, so that it is executed late.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from ctypes import CDLL, c_void_p, cast
from pathlib import Path

import numpy as np

import pinning

THREADS, SIZE = 3, 1 << 17
SLEEP = cast(CDLL(None).usleep, c_void_p).value  # called without the GIL, with its argument in microseconds


class Callback:
    """Something that is called late, and whose memory must not have been reused by then."""

    def __init__(self) -> None:
        self.kept = [object() for _ in range(10)]

    def __call__(self) -> None:
        self.kept.clear()


class Work:
    """What a thread does again and again: one call of each method that is named on the command line."""

    def __init__(self, device: str, folder: Path, number: int) -> None:
        self.device, self.folder, self.number = device, folder, number

    def queue(self, order: str = "in_order") -> pinning.Queue:
        """A queue with pending work, which the caller drops."""
        queue = pinning.Queue(self.device, order)  # type: ignore[arg-type]
        queue.submit(lambda vendor: vendor.call(SLEEP, 2000))
        return queue

    def there(self) -> pinning.Allocation:
        return pinning.alloc(SIZE, "device", device=self.device)

    def path(self) -> Path:
        return self.folder / f"{self.number}.safetensors"

    def saved(self) -> Path:
        if not self.path().exists():
            pinning.save_file({"x": np.ones(SIZE, "u1")}, self.path())
        return self.path()

    def copy(self) -> None:
        with self.there() as there:
            pinning.copy(there, np.ones(SIZE, "u1"))

    def copy_async(self) -> None:
        pinning.copy_async(np.empty(SIZE, "u1"), np.ones(SIZE, "u1"), queue=self.queue())

    def copy_async_out_of_order(self) -> None:
        pinning.copy_async(np.empty(SIZE, "u1"), np.ones(SIZE, "u1"), queue=self.queue("out_of_order"))

    def copy_to_device(self) -> None:
        queue = self.queue()
        there, allocated = queue.alloc(SIZE)
        pinning.copy_async(there, np.ones(SIZE, "u1"), queue=queue, wait_for=[allocated])
        queue.free(there)

    def copy_of_locked(self) -> None:
        source, queue = np.ones(SIZE, "u1"), self.queue()
        there, _ = queue.alloc(SIZE)
        with pinning.lock(source, device=self.device) as lock:
            pinning.copy_async(there, lock, queue=queue).wait()
        queue.free(there)

    def copy_in_default_queue(self) -> None:
        pinning.copy_async(np.empty(SIZE, "u1"), np.ones(SIZE, "u1"))

    def copy_batch(self) -> None:
        to, source = [np.empty(1000, "u1") for _ in range(20)], [np.ones(1000, "u1") for _ in range(20)]
        pinning.copy_batch_async(to, source, queue=self.queue())

    def copy_blocks(self) -> None:
        to, source, order = np.empty(SIZE, "u1"), np.ones(SIZE, "u1"), np.arange(SIZE // 1024, dtype="u8")
        pinning.copy_blocks_async(to, order, source, order[::-1].copy(), 1024, queue=self.queue())

    def copy_2d(self) -> None:
        pinning.copy_2d_async(np.empty(SIZE, "u1"), 64, np.ones(2 * SIZE, "u1"), 128, 64, 100, queue=self.queue())

    def fill(self) -> None:
        pinning.fill_async(np.empty(SIZE, "u1"), 1, queue=self.queue())

    def call(self) -> None:
        queue = self.queue()
        for _ in range(10):
            queue.call(Callback())

    def call_and_wait(self) -> None:
        self.queue().call(Callback()).wait()

    def close(self) -> None:
        with self.queue() as queue:
            queue.call(Callback())

    def events(self) -> None:
        first, second = self.queue(), pinning.Queue("host")
        event = first.call(Callback())
        second.call(Callback(), [event, first.record()])

    def pools(self) -> None:
        queue = self.queue()
        pool = pinning.Pool(self.device, "host")
        memory, allocated = queue.alloc(SIZE, pool=pool)
        pinning.copy_async(memory, np.ones(SIZE, "u1"), queue=queue, wait_for=[allocated])
        queue.free(memory)

    def alloc_and_free(self) -> None:
        pinning.alloc(SIZE, "host", device=self.device).free()

    def arenas(self) -> None:
        with pinning.Arena(1 << 20, devices=self.device) as arena, arena.allocate(SIZE) as memory:
            pinning.copy_async(memory, np.ones(SIZE, "u1"), queue=self.queue()).wait()

    def dropped_arenas(self) -> None:
        arena = pinning.Arena(1 << 20, devices=self.device)
        pinning.copy_async(arena.allocate(SIZE), np.ones(SIZE, "u1"), queue=self.queue())

    def lock(self) -> None:
        with pinning.lock(np.ones(SIZE, "u1"), device=self.device):
            pass

    def lock_async(self) -> None:
        with pinning.lock_async(np.ones(SIZE, "u1"), device=self.device) as pending:
            pending.wait()

    def arrays(self) -> None:
        from pinning.arrays import to_device

        to_device(np.ones(1000), device=self.device)

    def save_file_async(self) -> None:
        pinning.save_file_async({"x": np.ones(SIZE, "u1")}, self.path())

    def save_file(self) -> None:
        pinning.save_file({"x": np.ones(SIZE, "u1")}, self.path())

    def load_file(self) -> None:
        pinning.load_file(self.saved(), self.device, framework="pinning")

    def copy_file(self) -> None:
        pinning.copy_file(np.empty(SIZE, "u1"), self.saved(), 0, SIZE)

    def copy_file_async(self) -> None:
        pinning.copy_file_async(np.empty(SIZE, "u1"), self.saved(), 0, SIZE, queue=self.queue())


OPERATIONS = [name for name in vars(Work) if name[0] != "_" and name not in ("queue", "there", "path", "saved")]


def again_and_again(act: Callable[[], None], begun: threading.Semaphore) -> None:
    try:
        act()
    except Exception:  # before the exit: the program itself is wrong
        traceback.print_exc()
        os._exit(1)
    begun.release()
    while True:
        try:
            act()
        except pinning.PinningError:  # what the exit has closed refuses
            time.sleep(0.001)


def main(device: str, operation: str) -> None:
    folder, begun = Path(tempfile.mkdtemp()), threading.Semaphore(0)
    for number in range(THREADS):
        act = getattr(Work(device, folder, number), operation)
        threading.Thread(target=again_and_again, args=(act, begun), daemon=True).start()
    for _ in range(THREADS):
        assert begun.acquire(timeout=100)


if __name__ == "__main__":
    main(*sys.argv[1:])

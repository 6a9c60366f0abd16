# SPDX-License-Identifier: Apache-2.0
"""A Ray program whose workers lock what they use of the object store, on the host; its argument is a folder."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy
import ray

import pinning
from pinning import arrays

DEVICE, MIB = "host:0", 1 << 20


def hook() -> None:
    import pinning.ray

    pinning.ray.setup("host:0", smallest=100_000)


@ray.remote(max_restarts=-1)
class Worker:
    def process(self) -> int:
        return os.getpid()

    def use(self, array: Any, wait: bool = True) -> tuple[int, bool, int]:
        """Return the array's sum, whether it gets locked, and the bytes registered in all."""
        end = time.monotonic() + 60
        while wait and not pinning.is_locked(array, device=DEVICE) and time.monotonic() < end:
            time.sleep(0.01)
        locked = sum(region.size for region in pinning.regions(DEVICE, idle=True))
        return int(array.sum()), pinning.is_locked(array, device=DEVICE), locked

    def get(self, reference: list[Any]) -> tuple[int, bool, int]:
        return self.use(ray.get(reference[0]))

    def use_little(self) -> list[str]:
        """Allow no more locks from now on, and return a list that gets the messages logged after that."""
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("pinning.ray").addHandler(handler)
        pinning.budget(4096)
        self._said = said
        return said

    def said(self) -> list[str]:
        end = time.monotonic() + 60
        while not self._said and time.monotonic() < end:
            time.sleep(0.01)
        return self._said

    def die(self, array: Any) -> None:
        """Be killed in the middle of copies."""
        there = numpy.empty_like(array)

        def copy() -> None:
            while True:
                pinning.copy(there, array)

        threading.Thread(target=copy, daemon=True).start()
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

    def put(self, count: int) -> list[Any]:
        import pinning.ray

        return [pinning.ray.put(arrays.to_device(numpy.full(MIB, 4, numpy.uint8), device=DEVICE)) for _ in range(count)]


def answer(worker: Any, call: Any, *arguments: Any) -> Any:
    """Call an actor and return its answer; try again while the actor is being restarted."""
    end = time.monotonic() + 120
    while True:
        try:
            return ray.get(call(worker, *arguments), timeout=120)
        except ray.exceptions.RayActorError:
            assert time.monotonic() < end
            time.sleep(0.1)


def start(folder: str, **more: Any) -> None:
    ray.init(
        num_cpus=1,
        object_store_memory=80 * MIB,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        _temp_dir=folder,
        runtime_env={"worker_process_setup_hook": hook},
        **more,
    )


def use_here() -> None:
    """Check that the driver has an object of the current store locked."""
    array = ray.get(ray.put(numpy.full(MIB, 5, numpy.uint8)))
    end = time.monotonic() + 60
    while not pinning.is_locked(array, device=DEVICE):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert (array == 5).all() and not array.flags.writeable


def main(folder: str) -> None:
    hook()
    start(folder)
    try:
        use_here()
        worker = Worker.remote()
        ones = ray.put(numpy.ones(MIB, numpy.uint8))

        def use(what: Any, *more: Any) -> tuple[int, bool, int]:
            return answer(worker, lambda on, *arguments: on.use.remote(*arguments), what, *more)  # type: ignore[no-any-return]

        total, locked, held = use(ones)
        assert (total, locked) == (MIB, True)
        assert MIB <= held < MIB + 65536, f"{held} bytes are locked, of a store of 80 MiB"
        assert answer(worker, lambda on: on.get.remote([ones])) == (MIB, True, held)
        assert use(numpy.ones(1000, numpy.uint8), False) == (1000, False, held), "what is small is not worth it"

        # Objects that come and go reuse one another's memory, in other sizes.
        for number in range(12):
            size = MIB // 2 + number * 100_000
            passing = ray.put(numpy.full(size, 2, numpy.uint8))
            assert use(passing)[:2] == (2 * size, True)
            del passing
        assert use(ones)[:2] == (MIB, True)

        # Objects that are put from a device.
        for each in answer(worker, lambda on: on.put.remote(3)):
            assert use(each)[:2] == (4 * MIB, True)
            assert (ray.get(each) == 4).all()

        # Objects for which the store has no room are spilled, and come back at other addresses.
        many = [ray.put(numpy.full(16 * MIB, number, numpy.uint8)) for number in range(6)]
        for number, each in enumerate(many):
            assert use(each, False)[0] == number * 16 * MIB
        del many, each
        assert use(ones)[:2] == (MIB, True)

        # A worker that is killed during a copy is replaced by another, which has locks of its own.
        before = answer(worker, lambda on: on.process.remote())
        worker.die.remote(ones)
        end = time.monotonic() + 120
        while answer(worker, lambda on: on.process.remote()) == before:
            assert time.monotonic() < end
        assert use(ones)[:2] == (MIB, True)

        # A refusal is logged once, and the task's result is correct.
        answer(worker, lambda on: on.use_little.remote())
        others = [ray.put(numpy.full(3 * MIB, 3, numpy.uint8)) for _ in range(2)]
        for each in others:
            assert use(each, False)[:2] == (9 * MIB, False)
            said = answer(worker, lambda on: on.said.remote())
            assert len(said) == 1 and "budget" in said[0], said
    finally:
        ray.shutdown()

    # Another store, in a file on a disk.
    start(folder, _plasma_directory=folder)
    try:
        use_here()
    finally:
        ray.shutdown()
    print("ray: all right")


if __name__ == "__main__":
    main(sys.argv[1])

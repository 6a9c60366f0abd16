# SPDX-License-Identifier: Apache-2.0
"""An arena shared by four processes: each locks a part for its device, writes there, and reads what all have written.

Run it: ``python shared_arena.py [BYTES_FOR_EACH]``
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.synchronize import Barrier

import numpy

import pinning

PROCESSES = 4
WAIT = 120  # seconds for the others


def work(rank: int, name: str, nbytes: int, all_there: Barrier) -> None:
    mine = slice(rank * nbytes, (rank + 1) * nbytes)
    with pinning.Arena(PROCESSES * nbytes, name=name, part=mine) as arena, pinning.Queue() as queue:
        arena.wait()  # it is locked in the background
        block = arena.allocate(nbytes)  # of this process's part
        block.asarray()[:] = rank + 1
        all_there.wait(WAIT)

        for other in range(PROCESSES):  # each process can access all of it
            theirs = arena.asarray(nbytes, offset=other * nbytes)
            assert (theirs == other + 1).all(), f"the bytes of process {other} are not what it wrote"
        del theirs

        there, _ = queue.alloc(nbytes)
        copy = pinning.copy_async(there, block, queue=queue)
        back = numpy.empty(nbytes, "u1")
        pinning.copy(back, there, queue=queue)
        queue.free(there)
        assert (back == rank + 1).all(), "what came back is not what was written"
        (device,) = arena.devices
        print(f"process {rank}: {nbytes} bytes locked for {device.name}, copied there: {copy.path}", flush=True)
        block.free()
        all_there.wait(WAIT)


def main() -> None:
    nbytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    name = f"example-{os.getpid()}"
    spawn = multiprocessing.get_context("spawn")  # CUDA does not work in a fork
    all_there = spawn.Barrier(PROCESSES)
    processes = [spawn.Process(target=work, args=(rank, name, nbytes, all_there)) for rank in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes), "a process failed"
    try:
        pinning.Arena(PROCESSES * nbytes, name=name, create=False)
    except pinning.PinningError:
        print("the last one out has removed it")


if __name__ == "__main__":
    main()

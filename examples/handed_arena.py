# SPDX-License-Identifier: Apache-2.0
"""A locked arena that one process hands over to the next: a server is replaced while its cache stays in memory.

The old process fills an arena and serves from it. The new one joins it by name, locks it, and reports that;
then the old one exits. The bytes are neither copied nor read again, and they are locked all the time.

Run it: ``python handed_arena.py [BYTES]``
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Event

import numpy

import pinning

WAIT = 120  # seconds for the other


def say(process: str, begin: float, what: str) -> None:
    print(f"{process}: after {1e3 * (time.perf_counter() - begin):.0f} ms {what}", flush=True)


def serve(arena: pinning.Arena) -> str:
    """Copy all of it to the device and back; returns the path of the copy to the device."""
    nbytes = arena.nbytes
    with pinning.Queue(arena.devices[0]) as queue:
        there, _ = queue.alloc(nbytes)
        cache = arena.asarray(nbytes)
        path = pinning.copy_async(there, cache, queue=queue).path
        back = numpy.empty(nbytes, "u1")
        pinning.copy(back, there, queue=queue)
        queue.free(there)
        assert (back == cache).all(), "what came back is not what is in the cache"
        del cache  # or the arena could not be closed
    return path


def old(name: str, nbytes: int, filled: Event, taken: Event) -> None:
    begin = time.perf_counter()
    with pinning.Arena(nbytes, name=name) as arena:
        arena.asarray(nbytes)[:] = numpy.arange(nbytes) % 251  # stands for data that is slow to compute or read
        arena.wait()
        say("old", begin, f"has {nbytes} bytes locked for {arena.devices[0].name}, and filled")
        filled.set()
        while not taken.wait(0):
            path = serve(arena)
    say("old", begin, f"has left; its last copy was {path}")


def new(name: str, nbytes: int, filled: Event, taken: Event) -> None:
    assert filled.wait(WAIT)
    begin = time.perf_counter()
    with pinning.Arena(nbytes, name=name, create=False) as arena:
        assert not arena.made, "it was to be there already"
        arena.wait()
        say("new", begin, f"has the same {nbytes} bytes locked for {arena.devices[0].name}")
        taken.set()
        cache = arena.asarray(nbytes)
        assert (cache == numpy.arange(nbytes) % 251).all(), "these are not the bytes of the old one"
        del cache
        say("new", begin, f"serves what the old one had filled; its copy was {serve(arena)}")


def main() -> None:
    nbytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    name = f"example-handed-{os.getpid()}"
    spawn = multiprocessing.get_context("spawn")  # CUDA does not work in a fork
    filled, taken = spawn.Event(), spawn.Event()
    processes = [spawn.Process(target=each, args=(name, nbytes, filled, taken)) for each in (old, new)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes), "a process failed"
    print("handed on")


if __name__ == "__main__":
    main()

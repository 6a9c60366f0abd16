# SPDX-License-Identifier: Apache-2.0
"""A copy of 4 KiB of locked memory in a CUDA graph: ``graphs.py ROUNDS``.

Microseconds per launch, over many in a row: of a graph that the driver's own calls recorded, of one that keeps alive
what it uses, and of one for which the program does so. And the time to record the copy.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

import numpy
from rounds import Case, take_turns

import pinning
from pinning.queues.graphs import graphs_alive

LAUNCHES, BYTES, DEVICE = 5000, 4096, "cuda:0"
cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *given: object) -> None:
    code = getattr(cuda, name)(*given)
    if code:
        raise RuntimeError(f"{name}: {code}")


def captured(stream: ctypes.c_void_p, record: Callable[[], object]) -> tuple[ctypes.c_void_p, float]:
    graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", stream, 1)
    begin = time.perf_counter_ns()
    record()
    took = (time.perf_counter_ns() - begin) / 1e3
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
    call("cuGraphDestroy", graph)
    return ready, took


def launches(stream: ctypes.c_void_p, ready: ctypes.c_void_p) -> float:
    call("cuStreamSynchronize", stream)
    begin = time.perf_counter_ns()
    for _ in range(LAUNCHES):
        cuda.cuGraphLaunch(ready, stream)
    call("cuStreamSynchronize", stream)
    return (time.perf_counter_ns() - begin) / LAUNCHES / 1e3


def main() -> None:
    rounds = int(sys.argv[1])
    case = Case("graphs", f"{BYTES} locked bytes in a graph", 2)
    array = numpy.ones(BYTES, "u1")
    with (
        pinning.Queue(DEVICE) as queue,
        pinning.lock(array, device=DEVICE),
        pinning.alloc(BYTES, device=DEVICE) as memory,
    ):
        context, stream = ctypes.c_void_p(), ctypes.c_void_p(queue.handle)
        call("cuStreamGetCtx", stream, ctypes.byref(context))
        call("cuCtxSetCurrent", context)
        where = ctypes.c_uint64(memory.ptr), ctypes.c_uint64(array.ctypes.data), ctypes.c_size_t(BYTES), stream

        def kept_by_program() -> None:
            queue._record_to(kept)
            pinning.copy_async(memory, array, queue=queue)
            queue._record_to(None)

        kept: list[object] = []
        ways = {
            "driver": lambda: call("cuMemcpyAsync", *where),
            "kept by the graph": lambda: pinning.copy_async(memory, array, queue=queue),
            "kept by the program": kept_by_program,
        }
        graphs = {name: captured(stream, record)[0] for name, record in ways.items()}

        def turn(name: str) -> Callable[[], None]:
            def measure() -> None:
                case.add("launch", "us", name, launches(stream, graphs[name]))
                ready, took = captured(stream, ways[name])
                case.add("record", "us", name, took)
                call("cuGraphExecDestroy", ready)

            return measure

        take_turns(rounds, [turn(name) for name in ways])
        case.print()
        for ready in graphs.values():
            call("cuGraphExecDestroy", ready)
        kept.clear()
        while graphs_alive():
            time.sleep(0.01)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Streams under capture, on the stand-in, whose rules for captures were observed on a real driver."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from captures import Graph
from graph_cases import *  # noqa: F403
from graph_cases import SMALL, Case, ended, own_or_adopted, refusals

import pinning
from fake_device import WAIT, Background
from pinning.conformance.faults import eventually
from pinning.queues import pending
from pinning.queues.graphs import graphs_alive
from standins.standin import StandIn


@pytest.fixture(params=["own", "adopted"])
def queue(standin: StandIn, request: pytest.FixtureRequest) -> Iterator[pinning.Queue]:
    with own_or_adopted("cuda:0", request.param) as queue:
        yield queue


def test_the_driver_does_not_hear_of_what_is_refused(standin: StandIn, case: Case) -> None:
    calls = refusals(case)
    with Graph(case.queue.handle, "relaxed") as graph:
        for name, call in calls.items():
            before = standin.calls()
            with pytest.raises(pinning.GraphCaptureError):
                call()
            asked = [each.split()[0] for each in standin.calls()[len(before) :]]
            assert set(asked) <= {"cuPointerGetAttributes"}, name
    graph.close()


def test_a_batch_of_the_c_interface_is_refused(case: Case) -> None:
    library = ctypes.CDLL(str(next(pinning.build.library_dirs()[0].glob("libpinning.so.*"))))
    map_of_gpu, copy = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.pinning_map_open(ctypes.byref(map_of_gpu), b"cuda:0") == 0
    dsts, srcs = (ctypes.c_void_p * 1)(case.memory.ptr), (ctypes.c_void_p * 1)(case.locked.ctypes.data)
    batch = map_of_gpu, dsts, srcs, (ctypes.c_size_t * 1)(SMALL), ctypes.c_size_t(1)
    stream = ctypes.c_void_p(case.queue.handle)
    with Graph(case.queue.handle, "relaxed") as graph:
        invalid_argument = library.pinning_copy_batch_async(*batch, stream, ctypes.byref(copy))
    graph.close()
    library.pinning_error_string.restype = library.pinning_last_error.restype = ctypes.c_char_p
    assert library.pinning_error_string(invalid_argument) == b"an argument is wrong"
    assert b"captured into a graph" in library.pinning_last_error()
    assert library.pinning_copy_batch_async(*batch, stream, ctypes.byref(copy)) == 0
    assert library.pinning_copy_wait(copy) == 0


def test_a_graph_that_cannot_keep_what_it_uses_records_nothing(standin: StandIn, case: Case) -> None:
    references = sys.getrefcount(case.memory)
    for call in ("cuUserObjectCreate", "cuGraphRetainUserObject"):
        with Graph(case.queue.handle, "relaxed") as graph:
            standin.configure(f"fail={call}:1:2")
            with pytest.raises(pinning.OutOfMemoryError, match=call):
                pinning.fill_async(case.memory, 1, queue=case.queue)
            assert not standin.calls("cuMemsetD8Async")
        ended(graph)
    assert eventually(lambda: sys.getrefcount(case.memory) == references)


def test_an_event_of_another_graph_is_not_waited_for(case: Case) -> None:
    with Graph(case.queue.handle, "relaxed") as first:
        recorded = pinning.fill_async(case.memory, 1, queue=case.queue)
    with Graph(case.queue.handle, "relaxed") as second:
        own = pinning.fill_async(case.memory, 2, queue=case.queue)
        pinning.fill_async(case.memory, 3, queue=case.queue, wait_for=[own])
        with pytest.raises(pinning.GraphCaptureError):
            pinning.fill_async(case.memory, 4, queue=case.queue, wait_for=[recorded])
    for graph in (first, second):
        graph.close()
    assert eventually(lambda: not graphs_alive())


@pytest.mark.filterwarnings("ignore:.* was dropped:ResourceWarning")
def test_memory_that_is_dropped_during_a_capture_is_freed_after_it(queue: pinning.Queue) -> None:
    with pinning.Pool("cuda:0") as pool:
        memory, _ = queue.alloc(SMALL, pool=pool)
        queue.synchronize()
        with Graph(queue.handle, "relaxed") as graph:
            del memory
            time.sleep(0.05)  # it is tried now, and refused
            assert pool.used
        graph.close()
        assert eventually(lambda: not pool.used)


@pytest.mark.filterwarnings("ignore:.* was dropped:ResourceWarning")
def test_a_pool_that_is_dropped_during_a_capture_is_closed_after_it(queue: pinning.Queue) -> None:
    go = threading.Event()
    context = pinning.Context("cuda:0")
    pool = pinning.Pool(context)
    memory, _ = queue.alloc(SMALL, pool=pool)
    queue.call(lambda: go.wait(WAIT))
    queue.free(memory)
    with Graph(queue.handle, "relaxed") as graph:
        del memory, pool
        time.sleep(0.05)  # as above
    graph.close()
    go.set()

    def has_all_back() -> bool:
        with suppress(pinning.StillInUseError):
            context.close()
        return context.closed

    assert eventually(has_all_back)


def test_the_exit_waits_for_work_though_graphs_were_recorded(case: Case) -> None:
    with Graph(case.queue.handle, "relaxed") as graph:
        pinning.fill_async(case.memory, 1, queue=case.queue)
    go = threading.Event()
    with pinning.Queue("host") as queue:
        queue.call(lambda: go.wait(WAIT))
        leaving = Background(pending._wait_for_all)
        leaving.join(0.05)
        assert leaving.is_alive()
        go.set()
        leaving.result()
    graph.close()
    assert eventually(lambda: not graphs_alive())

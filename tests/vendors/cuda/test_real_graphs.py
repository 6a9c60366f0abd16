# SPDX-License-Identifier: Apache-2.0
"""Streams under capture on a real GPU, by the driver's own calls and by PyTorch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy
import pytest
from captures import Graph
from graph_cases import *  # noqa: F403
from graph_cases import Case, ended, own_or_adopted

import pinning
from fake_device import Background
from pinning.map.adapters import synchronize_in_background
from pinning.plugin import CopyDevice


@pytest.fixture(params=["own", "adopted"])
def queue(real_gpu: CopyDevice, request: pytest.FixtureRequest) -> Iterator[pinning.Queue]:
    with own_or_adopted(real_gpu, request.param) as queue:
        yield queue


def test_a_wait_of_a_background_thread_for_the_device_ends_no_capture(case: Case, mode: str) -> None:
    with pinning.alloc(8 << 30, device=case.queue.device) as large:
        with Graph(case.queue.handle, mode) as graph:
            pinning.copy_async(case.memory, case.locked, queue=case.queue)
            busy = [pinning.fill_async(large, 1, queue=case.other) for _ in range(40)][-1]
            assert not busy.done()
            synchronize_in_background(case.queue.device)
            assert busy.done()
        case.fill(9)
        graph.launch()
        assert (case.on_device() == 9).all()
        ended(graph)


@pytest.mark.parametrize("mode", ["thread_local", "global", "relaxed"])
def test_a_thousand_replays_beside_threads_that_lock_and_stage(real_gpu: CopyDevice, mode: str) -> None:
    torch = pytest.importorskip("torch")
    stop = threading.Event()

    def work(seed: int) -> None:
        buffer = numpy.full(32 << 20, seed, numpy.uint8)
        with pinning.Queue(real_gpu) as queue:
            while not stop.is_set():
                memory, _ = queue.alloc(buffer.nbytes)
                pinning.copy(memory, buffer, queue=queue)
                with pinning.lock(buffer[: 1 << 20], device=real_gpu):
                    back = numpy.zeros(1 << 20, numpy.uint8)
                    pinning.copy(back, memory, 1 << 20, queue=queue)
                    assert (back == seed).all()
                queue.free(memory)

    threads = [Background(partial(work, seed)) for seed in range(1, 5)]
    try:
        _replay(torch, real_gpu, mode, 1000)
    finally:
        stop.set()
        for thread in threads:
            thread.result()


def _replay(torch: Any, device: Any, mode: str, times: int) -> None:
    inputs, outputs = numpy.zeros(1 << 20, numpy.int32), numpy.zeros(1 << 20, numpy.int32)
    given = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with pinning.lock(inputs, device=device), pinning.lock(outputs, device=device):
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            pinning.copy_async(given, inputs, queue=stream)
            doubled = given * 2
            pinning.copy_async(outputs, doubled, queue=stream)
        for step in range(times):
            inputs[:] = step
            graph.replay()
            torch.cuda.synchronize()
            assert (outputs == 2 * step).all(), step

# SPDX-License-Identifier: Apache-2.0
"""Queues of <pinning/pinning.h> against a real NVIDIA driver, which reads pageable sources early."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import c_api
from c_copies import Copying, batch, check_order, check_stream, rows, whole
from pinning.plugin.native import NativeQueue
from pinning_cuda import CudaDevice

BUSY = 1 << 30


@pytest.fixture(scope="module")
def gpu(real_gpu: CudaDevice) -> CudaDevice:
    return real_gpu


@pytest.fixture
def stream(gpu: CudaDevice) -> Iterator[NativeQueue]:
    stream = gpu.make_queue()
    yield stream
    stream.synchronize()
    stream.close()


@pytest.mark.parametrize("size", [16 << 10, 192 << 10, 12 << 20])
@pytest.mark.parametrize(("write", "read"), list(itertools.product([whole, batch, rows], repeat=2)))
@pytest.mark.parametrize("adopted", [False, True])
def test_what_pending_work_writes_is_read_after_it(
    gpu: CudaDevice, stream: NativeQueue, adopted: bool, write: Copying, read: Copying, size: int
) -> None:
    with c_api.Queue(gpu.name, stream.handle if adopted else None) as queue:
        check_order(queue, gpu, write, read, size, BUSY)


@pytest.mark.parametrize("size", [16 << 10, 192 << 10, 12 << 20])
def test_copies_in_one_stream_know_of_each_other(gpu: CudaDevice, stream: NativeQueue, size: int) -> None:
    check_stream(gpu, stream.handle, size, BUSY)

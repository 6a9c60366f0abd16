# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, calls to the runtime, the current device, failures, and what is left at the end."""

from __future__ import annotations

import ctypes

import numpy
import pytest

import pinning
from noise import noise
from pinning.conformance.allocations import Allocations
from pinning.conformance.holding import host_bytes
from pinning.errors import PinningError, VendorError
from pinning.plugin import MemoryKind
from pinning.plugin.native import NativeQueue
from pinning_hip import plugin
from standins.libhip import FAULTS, left, live
from standins.standin import StandIn

HOST = MemoryKind.HOST
GPU = plugin.device(0)
OTHER = plugin.device(1)
UNKNOWN, _ = FAULTS.failure
NOTHING = {"streams": 0, "allocations": 0}


# ---- values ----


def test_the_scale_of_values_ends_where_it_would_wrap(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    word = memory(HOST, bytes(4))
    ctypes.c_uint32.from_address(word).value = 2**31 - 1
    queue.wait_value(word, 2**31 - 1)
    queue.synchronize()
    standin.configure()
    with pytest.raises(PinningError, match=r"hip:0 cannot wait until a word has reached 2147483648.*do not wrap"):
        queue.wait_value(word, 2**31)
    assert standin.calls() == []


@pytest.mark.parametrize(
    ("index", "lacking"), [(4, "no_wait_value"), (5, "signal_memory_only"), (6, "fail=hipStreamWaitValue32:1:801")]
)
def test_a_gpu_that_cannot_wait_for_values_says_so(
    standin: StandIn, memory: Allocations, index: int, lacking: str
) -> None:
    word = memory(HOST, bytes(4))
    standin.configure(lacking)
    queue = plugin.device(index).make_queue()  # the first queue of this GPU
    assert not queue.waits_for_values
    assert live()["streams"] == 1
    for act in (lambda: queue.wait_value(word, 1), lambda: queue.write_value(word, 1)):
        with pytest.raises(PinningError, match=rf"queues of hip:{index} cannot wait for values.*use events"):
            act()
    queue.fill(word, b"\1", 4)
    queue.synchronize()
    assert host_bytes(word, 4) == b"\1" * 4


def test_whether_a_gpu_waits_for_values_is_found_out_once(standin: StandIn) -> None:
    gpu = plugin.device(2)
    queues = [gpu.make_queue(), gpu.make_queue(), gpu.adopt_queue(0)]
    assert all(queue.waits_for_values for queue in queues)
    assert len(standin.calls("hipStreamWaitValue32")) == 1


# ---- adopted and closed ----


def test_a_stream_of_another_gpu_is_not_adopted(standin: StandIn) -> None:
    owner = OTHER.make_queue()
    with pytest.raises(PinningError, match=f"stream {owner.handle:#x} is not on hip:0"):
        GPU.adopt_queue(owner.handle)
    with pytest.raises(VendorError, match="hipErrorContextIsDestroyed"):
        GPU.adopt_queue(owner.handle + 1)
    owner.close()


# ---- failures ----


def test_each_call_of_finding_out_about_values_fails(standin: StandIn) -> None:
    gpu = plugin.device(3)
    for call in (
        *("hipDeviceGetAttribute", "hipHostMalloc", "hipStreamCreateWithFlags", "hipStreamWaitValue32"),
        *("hipStreamWriteValue32", "hipStreamSynchronize", "hipStreamDestroy"),
    ):
        standin.configure(f"fail={call}:1:{UNKNOWN}")
        with pytest.raises(VendorError) as raised:
            gpu.make_queue()
        assert (raised.value.call, raised.value.code) == (call, UNKNOWN)
        assert left() == NOTHING
    assert gpu.make_queue().waits_for_values  # nothing was concluded from the failures


# ---- captures ----


@pytest.mark.parametrize("handle", [2, 0], ids=["itself", "the default stream, which waits for it"])
def test_nothing_is_submitted_to_a_stream_under_capture(standin: StandIn, handle: int) -> None:
    runtime, of_this_thread, graph = ctypes.CDLL("libamdhip64.so"), ctypes.c_void_p(2), ctypes.c_void_p()
    with pinning.alloc(4, device=GPU) as there, pinning.Queue.adopt(handle, GPU) as queue:
        standin.configure()
        assert runtime.hipStreamBeginCapture(of_this_thread, 0) == 0
        with pytest.raises(pinning.GraphCaptureError):
            pinning.fill_async(there, 1, queue=queue)
        assert standin.calls("hipMemsetD8Async") == []
        assert runtime.hipStreamEndCapture(of_this_thread, ctypes.byref(graph)) == 0
        pinning.fill(there, 1, queue=queue)


# ---- batches ----


def test_a_batch_is_one_call_for_some_thousands(standin: StandIn, other: pinning.Queue) -> None:
    count, size = 5000, 16
    array, back = noise((count, size)), numpy.zeros((count, size), numpy.uint8)
    order = numpy.random.default_rng(2).permutation(count)
    with pinning.alloc(array.nbytes, device=GPU) as there, pinning.locked(array, back, device=GPU):
        standin.configure()
        pinning.copy_blocks(there, order, array, range(count), size, queue=other)
        assert [call.split()[:2] for call in standin.calls() if call.startswith("hipMemcpy")] == [
            ["hipMemcpyBatchAsync", "4096"],
            ["hipMemcpyBatchAsync", "904"],
        ]
        standin.configure("fail=hipMemcpyBatchAsync:1:801")  # as in releases that support only copies between devices
        copy = pinning.copy_blocks_async(back, range(count), there, order, size, queue=other)
        assert ctypes.CDLL("libamdhip64.so").hipGetLastError() == 0  # which other code asks after its kernels
        copy.wait()
        standin.configure()
    assert copy.path == "direct"
    assert (back == array).all()

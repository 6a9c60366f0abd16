# SPDX-License-Identifier: Apache-2.0
"""The CUDA locker's own rules, through the C interface, on the stand-in driver."""

from __future__ import annotations

import mmap

import c_api
from mapped_memory import PAGE, Memory
from standins.standin import StandIn


def flags(standin: StandIn) -> list[int]:
    return [int(call.split()[3]) for call in standin.calls("cuMemHostRegister")]


def test_a_gpu_without_read_only_registration_is_not_asked_for_it(standin: StandIn) -> None:
    standin.configure("no_read_only")
    native = c_api.Map("cuda:0")  # not opened before in this process
    memory = Memory(1)
    memory.protect(0, mmap.PROT_READ)
    native.lock(memory.ptr, PAGE)
    assert flags(standin) == [3]
    native.unlock(memory.ptr)


def test_more_than_one_call_can_take_is_locked_in_pieces(standin: StandIn, native: c_api.Map) -> None:
    c_api.call("pinning_set_budget", 2**64 - 1)  # more memory than this machine has
    half = 256 << 30
    huge = Memory((half + PAGE) // PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    native.lock(huge.ptr, huge.size)
    region = native.find(huge.ptr, huge.size)
    assert region is not None and region.piece == half
    assert [int(call.split()[2]) for call in standin.calls("cuMemHostRegister")] == [half, PAGE]
    native.unlock(huge.ptr)
    for page in (0, half // PAGE):
        huge.unmap(page)

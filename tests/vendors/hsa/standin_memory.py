# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what is known about a pointer, and connections between GPUs."""

from __future__ import annotations

import ctypes

import pytest

from mapped_memory import PAGE, Memory
from pinning.errors import PinningError, VendorError
from pinning.plugin import MemoryConnection, MemoryKind
from pinning_hsa import plugin
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
GPU = plugin.device(0)
OTHER = plugin.device(1)


def test_there_is_no_shared_memory_and_a_way_out(standin: StandIn) -> None:
    with pytest.raises(PinningError, match=r"hsa:0 has no memory of kind SHARED.*plugin hip.*HOST"):
        GPU.allocate(8, SHARED)
    assert standin.calls() == []


# ---- connections ----


def test_all_that_is_allocated_is_open_to_gpus_that_reach_it(standin: StandIn) -> None:
    assert GPU.connection(OTHER) is MemoryConnection.UNIFIED
    source, target = Memory(1), Memory(1)
    ctypes.memmove(source.ptr, b"over there", 10)
    here, there = GPU.allocate(PAGE), OTHER.allocate(PAGE)
    GPU.copy(here, source.ptr, PAGE)
    standin.configure("fail=hsa_amd_memory_pool_free:1:4096")
    with pytest.raises(VendorError):
        OTHER.free(there)
    standin.configure()
    GPU.copy(there, here, PAGE)
    (call,) = standin.calls("hsa_amd_memory_async_copy")  # the stand-in aborts if a GPU has no access
    assert call.split()[2:5:2] == ["0xd1", "0xd0"]
    OTHER.copy(target.ptr, there, PAGE)
    assert ctypes.string_at(target.ptr, 10) == b"over there"
    GPU.free(here)
    OTHER.free(there)


@pytest.mark.parametrize("kind", [HOST, DEVICE])
def test_memory_that_cannot_be_opened_to_the_others_is_given_back(standin: StandIn, kind: MemoryKind) -> None:
    standin.configure("fail=hsa_amd_agents_allow_access:1:4096")
    with pytest.raises(VendorError, match="hsa_amd_agents_allow_access"):
        GPU.allocate(PAGE, kind)
    assert len(standin.calls("hsa_amd_memory_pool_free")) == 1


def test_others_memory_on_another_gpu_is_not_taken_to_be_open(standin: StandIn) -> None:
    theirs = ctypes.c_void_p()
    hsa = ctypes.CDLL("libhsa-runtime64.so.1")
    hsa.hsa_amd_memory_pool_allocate.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p]
    assert hsa.hsa_amd_memory_pool_allocate(0xD12, PAGE, 0, ctypes.byref(theirs)) == 0
    assert theirs.value
    here = GPU.allocate(PAGE)
    GPU.copy(theirs.value, here, PAGE)
    assert len(standin.calls("hsa_memory_copy")) == 1
    OTHER.free(theirs.value)
    GPU.free(here)

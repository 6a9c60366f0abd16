# SPDX-License-Identifier: Apache-2.0
"""Locks against a real NVIDIA driver: what a stand-in cannot prove."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy
import pytest
from left_locked import *  # noqa: F403

import pinning
from noise import noise
from pinning import AlreadyPinnedError, InvalidRangeError, VendorError
from pinning.plugin import CopyDevice

MIB = 1 << 20


def round_trip(gpu: CopyDevice, source: numpy.ndarray) -> numpy.ndarray:
    """Copy `source` to the GPU, and return what comes back."""
    there = gpu.allocate(source.nbytes)
    try:
        gpu.copy(there, source.ctypes.data, source.nbytes)
        back = numpy.zeros_like(source)
        gpu.copy(back.ctypes.data, there, source.nbytes)
        return back
    finally:
        gpu.free(there)


@pytest.mark.parametrize("size", [1, 100, 4096, 4 * MIB + 3, 256 * MIB])
def test_locked_memory_reaches_the_gpu_and_comes_back(gpu: CopyDevice, size: int) -> None:
    array = noise(size)
    with pinning.lock(array, device=gpu) as lock:
        assert gpu.is_pinned_ptr(array.ctypes.data) == (array.ctypes.data, size, lock.device_ptr)
        assert gpu.is_pinned_ptr(array.ctypes.data + size) is None
        assert (round_trip(gpu, array) == array).all()
    assert gpu.is_pinned_ptr(array.ctypes.data) is None


def test_pieces_are_one_region_with_borders(gpu: CopyDevice) -> None:
    array = noise(MIB)
    with pinning.lock(array, device=gpu, piece=256 << 10) as lock:
        assert lock.region is not None
        assert [border - lock.ptr for border in lock.region.borders] == [256 << 10, 512 << 10, 768 << 10]
        pieces = [gpu.is_pinned_ptr(lock.ptr + at) for at in (0, 256 << 10)]
        assert [piece and piece.size for piece in pieces] == [256 << 10, 256 << 10]
        assert pieces[1] is not None
        assert pieces[1].device_ptr == lock.device_ptr + (256 << 10)  # device pointers are contiguous across a border
        with pytest.raises(VendorError):  # but one copy cannot cross it
            round_trip(gpu, array)


def test_an_expected_refusal_does_not_surface_in_other_libraries(gpu: CopyDevice) -> None:
    torch = pytest.importorskip("torch")
    array = noise(MIB)
    gpu.data_lock(array.ctypes.data, MIB, False)
    for _ in range(3):
        with pytest.raises(AlreadyPinnedError):
            gpu.data_lock(array.ctypes.data, MIB, False)
    assert float((torch.ones(1000, device="cuda") + 1).sum()) == 2000.0
    torch.cuda.synchronize()
    gpu.data_unlock(array.ctypes.data)


def test_files(gpu: CopyDevice, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(noise(4 * MIB).tobytes())
    for mode in ("r", "c"):  # shared and read only; private and writable
        array = numpy.memmap(path, mode=mode)  # type: ignore[call-overload]
        with pinning.lock(array, device=gpu):
            assert (round_trip(gpu, numpy.asarray(array)) == array).all()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as private,
        pytest.raises(InvalidRangeError, match="private read-only mapping"),
    ):
        pinning.lock(private, device=gpu)


def test_a_gpu_is_what_the_vendors_bindings_say_that_it_is(gpu: CopyDevice) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings: pip install cuda-bindings")
    from pinning_cuda import plugin

    def told(function: str, *arguments: object) -> Any:
        code, *results = getattr(driver, function)(*arguments)
        assert code == 0, function
        return results[0]

    driver.cuInit(0)
    assert plugin.device_count() == told("cuDeviceGetCount")
    version = told("cuDriverGetVersion")
    assert plugin.library() == ("libcuda.so.1", f"{version // 1000}.{version % 1000 // 10}")
    for index in range(plugin.device_count()):
        one, attributes = plugin.device(index), driver.CUdevice_attribute
        assert one.description == told("cuDeviceGetName", 256, index).split(b"\0")[0].decode()
        address = told("cuDeviceGetPCIBusId", 32, index).split(b"\0")[0].decode().lower()
        assert one.pci_address == address[-len("0000:00:00.0") :]
        managed = told("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, index)
        assert (pinning.MemoryKind.SHARED in one.memory_kinds) == bool(managed)
        registers = told("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, index)
        assert (one.problems == []) == bool(registers)
        for other in range(plugin.device_count()):
            if other == index:
                continue
            reaches = told("cuDeviceCanAccessPeer", other, index)
            peer = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
            atomic = told("cuDeviceGetP2PAttribute", peer, index, other)
            assert one.connection(plugin.device(other)).name == ("UNIFIED" if reaches else "MIGRATABLE")
            assert one.link_to(plugin.device(other)) == ("NVLink" if atomic else None)

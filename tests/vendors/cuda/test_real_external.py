# SPDX-License-Identifier: Apache-2.0
"""Memory that other libraries pin, on a real GPU: pinned first by either side, released first by either side."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from left_locked import *  # noqa: F403
from left_locked import entered

import pinning
from c_library import libc
from noise import noise
from pinning import AlreadyPinnedError, PartialOverlapError, PinnedInfo, PinnedMap, StillLockedError, VendorError
from pinning.locking.mapped import lock_mapped, unlock_unmapped
from pinning.plugin import CopyDevice

SIZE = (8 << 20) + 1000
ALREADY = "ALREADY_REGISTERED|AlreadyRegistered"

_MAP_FIXED_NOREPLACE = 0x100000


@pytest.fixture
def on(gpu: CopyDevice) -> PinnedMap:
    """The map of the GPU."""
    return pinning.pinned_map(gpu)


class Theirs(NamedTuple):
    """`size` bytes that another library has pinned; `give_up` frees them, or only unregisters them."""

    ptr: int
    size: int
    give_up: Callable[[], object]


def succeeded(code: Any, *results: Any) -> Any:
    assert int(code) == 0, f"the other party's own call failed: {code!r}"
    return results[0] if results else None


# ---- the other libraries: how each pins memory, and how it gives it up ----


def cuda_driver() -> Any:
    """The driver's bindings, with the context current that the other libraries use too."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")
    (_, context) = driver.cuDevicePrimaryCtxRetain(0)
    succeeded(*driver.cuCtxSetCurrent(context))
    return driver


def torch_allocates() -> Theirs:
    torch = pytest.importorskip("torch", reason="needs torch")
    empty_cache = getattr(torch._C, "_host_emptyCache", None)
    if empty_cache is None:
        pytest.skip("this torch cannot give pinned memory back: it needs torch._C._host_emptyCache")
    tensors = [torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)]
    return Theirs(tensors[0].data_ptr(), SIZE, lambda: (tensors.clear(), empty_cache()))


def torch_registers() -> Theirs:
    torch = pytest.importorskip("torch", reason="needs torch")
    runtime = torch.cuda.cudart()
    tensor = torch.zeros(SIZE, dtype=torch.uint8)
    succeeded(runtime.cudaHostRegister(tensor.data_ptr(), SIZE, 0))
    return Theirs(tensor.data_ptr(), SIZE, lambda: succeeded(runtime.cudaHostUnregister(tensor.data_ptr())))


def cupy_allocates() -> Theirs:
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    blocks = [cupy.cuda.alloc_pinned_memory(SIZE)]
    free = cupy.get_default_pinned_memory_pool().free_all_blocks
    return Theirs(int(blocks[0].ptr), SIZE, lambda: (blocks.clear(), free()))


def cupy_registers() -> Theirs:
    runtime = pytest.importorskip("cupy", reason="needs CuPy").cuda.runtime
    array = noise(SIZE)
    runtime.hostRegister(array.ctypes.data, SIZE, 0)
    return Theirs(array.ctypes.data, SIZE, lambda: runtime.hostUnregister(array.ctypes.data))


def numba_registers() -> Theirs:
    cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    array, stack = noise(SIZE), contextlib.ExitStack()
    stack.enter_context(cuda.pinned(array))
    return Theirs(array.ctypes.data, SIZE, stack.close)


def driver_allocates() -> Theirs:
    driver = cuda_driver()
    ptr = int(succeeded(*driver.cuMemHostAlloc(SIZE, 0)))
    return Theirs(ptr, SIZE, lambda: succeeded(*driver.cuMemFreeHost(ptr)))


def driver_registers() -> Theirs:
    driver, array = cuda_driver(), noise(SIZE)
    succeeded(*driver.cuMemHostRegister(array.ctypes.data, SIZE, 0))
    return Theirs(array.ctypes.data, SIZE, lambda: succeeded(*driver.cuMemHostUnregister(array.ctypes.data)))


ALLOCATE = [torch_allocates, cupy_allocates, driver_allocates]
REGISTER = [torch_registers, cupy_registers, numba_registers, driver_registers]


@pytest.fixture(params=[*ALLOCATE, *REGISTER], ids=lambda party: party.__name__)
def theirs(gpu: CopyDevice, request: pytest.FixtureRequest) -> Iterator[Theirs]:
    """Memory of each library in turn. Calls `give_up` after the test unless the test has done so; it must succeed."""
    gone: list[object] = []
    made: Theirs = request.param()

    def give_up() -> None:
        gone.append(made.give_up())
        gc.collect()

    yield made._replace(give_up=give_up)
    if not gone:
        give_up()
    assert gpu.is_pinned_ptr(made.ptr) is None


def vendor_range(ptr: int) -> PinnedInfo:
    """The pinned range around `ptr`, as the driver reports it."""
    driver = cuda_driver()
    names = ("RANGE_START_ADDR", "RANGE_SIZE", "DEVICE_POINTER")
    asked = [getattr(driver.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}") for name in names]
    start, size, device_ptr = (int(value) for value in succeeded(*driver.cuPointerGetAttributes(3, asked, ptr)))
    return PinnedInfo(ptr - (device_ptr - start), size, start)


def has_memory_behind(end: int) -> None:
    """Map the 20 bytes at `end` unless they are mapped already."""
    page = end + 20 & -mmap.PAGESIZE
    if page >= end:
        # Fails if there is a mapping already, which is just as good.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
        libc.mmap(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


def round_trip(gpu: CopyDevice, ptr: int, size: int) -> None:
    """Bytes go to the GPU and come back."""
    data = noise(SIZE)[:size].tobytes()
    ctypes.memmove(ptr, data, size)
    there = gpu.allocate(size)
    try:
        gpu.copy(there, ptr, size)
        ctypes.memset(ptr, 0, size)
        gpu.copy(ptr, there, size)
    finally:
        gpu.free(there)
    assert ctypes.string_at(ptr, size) == data


# ---- they first ----


def test_it_is_entered_with_the_vendors_range_and_never_unlocked(
    gpu: CopyDevice, on: PinnedMap, theirs: Theirs
) -> None:
    vendors = vendor_range(theirs.ptr)
    assert vendors.base <= theirs.ptr
    assert theirs.ptr + SIZE <= vendors.base + vendors.size
    part = pinning.lock((theirs.ptr + 5000, 100), device=gpu)
    whole = pinning.lock((theirs.ptr, SIZE), device=gpu)
    (region,) = entered(on)
    assert (region.start, region.size, region.device_ptr) == vendors
    assert (region.references, region.external, region.registered) == (2, True, False)
    assert part.device_ptr == whole.device_ptr + 5000 == region.device_ptr_of(theirs.ptr + 5000)
    round_trip(gpu, theirs.ptr, SIZE)
    whole.unlock()
    assert on.find(theirs.ptr, SIZE) is not None
    part.unlock()
    assert entered(on) == [], "dropped when its last user leaves"
    assert vendor_range(theirs.ptr) == vendors, "but it is as pinned as before"


def test_a_range_that_straddles_their_end(on: PinnedMap, theirs: Theirs) -> None:
    vendors = vendor_range(theirs.ptr)
    end = vendors.base + vendors.size
    has_memory_behind(end)
    both = rf"{end - 10:#x}, {end + 10:#x}.*{vendors.base:#x}, {end:#x}.*someone else"
    with pytest.raises(PartialOverlapError, match=both):
        on.lock(end - 10, 20)
    assert entered(on) == []
    on.lock(theirs.ptr, 10)
    with pytest.raises(PartialOverlapError, match=both):
        on.lock(end - 10, 20)
    (region,) = entered(on)
    assert (region.start, region.size, region.references) == (vendors.base, vendors.size, 1)
    on.unlock(theirs.ptr)
    assert vendor_range(theirs.ptr) == vendors


def test_a_range_that_straddles_their_start_or_goes_around(gpu: CopyDevice, on: PinnedMap) -> None:
    driver, array = cuda_driver(), noise(SIZE)
    inner = array[1 << 20 : 2 << 20].ctypes.data
    succeeded(*driver.cuMemHostRegister(inner, 1 << 20, 0))
    with pytest.raises(PartialOverlapError, match=f"{inner - 10:#x}.*{inner:#x}, {inner + (1 << 20):#x}"):
        on.lock(inner - 10, 20)
    with pytest.raises(AlreadyPinnedError):  # the driver does not say where
        on.lock(array.ctypes.data, SIZE)
    on.lock(inner - 10, 10)  # the memory beside it can be locked
    on.unlock(inner - 10)
    assert entered(on) == []
    assert gpu.is_pinned_ptr(inner) == vendor_range(inner)
    assert vendor_range(inner)[:2] == (inner, 1 << 20)
    succeeded(*driver.cuMemHostUnregister(inner))


def test_they_give_up_first_and_refresh_notices(gpu: CopyDevice, on: PinnedMap, theirs: Theirs) -> None:
    lock = pinning.lock((theirs.ptr, SIZE), device=gpu)
    assert on.refresh() == []
    assert lock.held
    region = on.find(theirs.ptr)
    theirs.give_up()
    assert on.find(theirs.ptr) == region, "the vendor tells nobody"
    (gone,) = on.refresh()
    assert (gone.start, gone.references) == (region and region.start, 1)
    assert entered(on) == []
    assert not lock.held
    lock.unlock()


@pytest.mark.parametrize("theirs", REGISTER, ids=lambda party: party.__name__, indirect=True)
def test_they_unregister_first_and_the_next_lock_is_our_own(gpu: CopyDevice, on: PinnedMap, theirs: Theirs) -> None:
    stale = pinning.lock((theirs.ptr, SIZE), device=gpu)
    theirs.give_up()
    with pinning.lock((theirs.ptr + 100, 1000), device=gpu) as lock:
        (region,) = entered(on)
        assert (region.start, region.size, region.external) == (theirs.ptr + 100, 1000, False)
        assert vendor_range(theirs.ptr + 100) == (region.start, region.size, region.device_ptr)
        assert not stale.held
        stale.unlock()
        assert lock.held


@pytest.mark.parametrize("theirs", ALLOCATE, ids=lambda party: party.__name__, indirect=True)
def test_they_free_first_and_the_next_lock_forgets_it(gpu: CopyDevice, on: PinnedMap, theirs: Theirs) -> None:
    stale = pinning.lock((theirs.ptr, SIZE), device=gpu)
    theirs.give_up()
    try:
        lock = pinning.lock((theirs.ptr, SIZE), device=gpu)
    except pinning.PinningError:
        assert entered(on) == [], "the memory is gone, and so is the region"
    else:  # other memory is there now
        assert [region.external for region in entered(on)] == [False]
        lock.unlock()
    assert not stale.held


def test_a_registration_is_theirs_before_and_after(gpu: CopyDevice, on: PinnedMap, theirs: Theirs) -> None:
    vendors = vendor_range(theirs.ptr)
    on.register(*vendors)
    region = on.find(theirs.ptr, SIZE)
    assert region is not None
    assert (region.external, region.registered, region.references) == (True, True, 0)
    with pytest.raises(PartialOverlapError):
        on.register(*vendors)
    with pinning.lock((theirs.ptr, SIZE), device=gpu) as lock:
        assert lock.device_ptr == vendors.device_ptr + (theirs.ptr - vendors.base)
        with pytest.raises(StillLockedError):
            on.unregister(theirs.ptr)
    assert on.find(theirs.ptr, SIZE) is not None, "no unlock takes it away"
    on.unregister(theirs.ptr)
    assert entered(on) == []
    assert vendor_range(theirs.ptr) == vendors


def test_automatic_locking_that_is_off_tracks_it(
    gpu: CopyDevice, on: PinnedMap, theirs: Theirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINNING_LOCK_MAPPED", "off")
    vendors, plain = vendor_range(theirs.ptr), noise(SIZE)
    assert lock_mapped(plain, device=gpu) is None
    found = lock_mapped((theirs.ptr + 9, 100), device=gpu)
    assert found == vendors.device_ptr + (theirs.ptr + 9 - vendors.base)
    (region,) = entered(on)
    assert (region.start, region.size, region.external, region.references) == (vendors.base, vendors.size, True, 1)
    unlock_unmapped(plain, device=gpu)
    assert len(entered(on)) == 1
    unlock_unmapped(theirs.ptr + 9, device=gpu)
    assert entered(on) == []
    assert vendor_range(theirs.ptr) == vendors


def test_a_lock_of_the_object_keeps_torch_from_giving_it_up(gpu: CopyDevice) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    tensor = torch.empty(SIZE, dtype=torch.uint8).pin_memory()
    ptr = tensor.data_ptr()
    with pinning.lock(tensor, device=gpu) as lock:
        del tensor
        getattr(torch._C, "_host_emptyCache", lambda: None)()
        assert pinning.pinned_map(gpu).refresh() == []
        assert lock.held
        round_trip(gpu, ptr, SIZE)


# ---- we first ----


@pytest.fixture
def ours(gpu: CopyDevice) -> Iterator[SimpleNamespace]:
    """An array that we have locked. After the test the lock must be unchanged, and its unlock must succeed."""
    array = noise(SIZE)
    with pinning.lock(array, device=gpu) as lock:
        before = lock.region
        yield SimpleNamespace(array=array, ptr=array.ctypes.data, lock=lock)
        assert lock.held
        assert lock.region == before
        assert gpu.is_pinned_ptr(array.ctypes.data) == (array.ctypes.data, SIZE, lock.device_ptr)
    assert gpu.is_pinned_ptr(array.ctypes.data) is None


def test_torch_takes_our_lock_for_pinned_memory(gpu: CopyDevice, ours: SimpleNamespace) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    torch.cuda.init()
    tensor = torch.from_numpy(ours.array)
    assert tensor.is_pinned()
    assert tensor.pin_memory().data_ptr() == ours.ptr, "so it makes no copy of it"
    there = tensor.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert bool((there.cpu() == tensor).all())


def test_torch_sees_our_unlock(gpu: CopyDevice) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    torch.cuda.init()
    tensor = torch.zeros(SIZE, dtype=torch.uint8)
    with pinning.lock(tensor, device=gpu):
        assert tensor.is_pinned()
    assert not tensor.is_pinned()


@pytest.mark.parametrize(("at", "size"), [(0, SIZE), (100, 1000), (SIZE - 500, 500)], ids=["equal", "inside", "end"])
def test_numba_is_refused(ours: SimpleNamespace, at: int, size: int) -> None:
    cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    with pytest.raises(Exception, match=ALREADY), cuda.pinned(ours.array[at : at + size]):
        pass


def test_cupy_is_refused_and_takes_it_for_host_memory(ours: SimpleNamespace) -> None:
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=ALREADY):
        cupy.cuda.runtime.hostRegister(ours.ptr + 4096, 4096, 0)
    assert cupy.cuda.runtime.pointerGetAttributes(ours.ptr).type == 1  # cudaMemoryTypeHost
    assert bool((cupy.asarray(ours.array).get() == ours.array).all())


def test_the_driver_refuses_another_registration(ours: SimpleNamespace) -> None:
    driver = cuda_driver()
    for ptr, size in [(ours.ptr, SIZE), (ours.ptr + 1, 10), (ours.ptr + SIZE - 10, 10)]:
        (code,) = driver.cuMemHostRegister(ptr, size, 0)
        assert code == driver.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED


def test_somebody_unregisters_what_is_ours(ours: SimpleNamespace) -> None:
    """As after any refusal by a vendor, the region stays until its unlock succeeds: here after registering it again."""
    driver = cuda_driver()
    succeeded(*driver.cuMemHostUnregister(ours.ptr))
    with pytest.raises(VendorError) as raised:
        ours.lock.unlock()
    assert raised.value.call == "cuMemHostUnregister"
    assert raised.value.name in ("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "CUDA_ERROR_INVALID_VALUE")
    assert ours.lock.held
    succeeded(*driver.cuMemHostRegister(ours.ptr, SIZE, 0))


def test_their_memory_beside_ours(gpu: CopyDevice, on: PinnedMap, theirs: Theirs, ours: SimpleNamespace) -> None:
    """Neither affects the other."""
    with pinning.lock((theirs.ptr, SIZE), device=gpu):
        assert {region.external for region in on} == {False, True}
        round_trip(gpu, theirs.ptr, SIZE)
    (region,) = entered(on)
    assert region.start == ours.ptr

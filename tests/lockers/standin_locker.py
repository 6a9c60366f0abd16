# SPDX-License-Identifier: Apache-2.0
"""The rules of every native locker, on the stand-in of the vendor that LOCKER names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from locker_vendors import Vendor

import c_api
from child_process import run_in_child
from mapped_memory import PAGE, Memory
from pinning.map.pinned_map import watch_problem
from standins.standin import StandIn

LOCKING = ("cuMemHostRegister", "hipHostRegister", "hsa_amd_memory_lock_to_pool", "urUSMHostAllocRegisterExp", "mlock")


def each_failure(
    standin: StandIn, vendor: Vendor, act: Callable[[], object]
) -> Iterator[tuple[str, c_api.StatusError | None]]:
    """Let the first vendor call of `act` fail, then the second and so on; yield each call and what `act` raised.

    The last round, in which no call fails, yields nothing.
    """
    for n in count(1):
        standin.configure(f"fail=*:{n}:{vendor.failure}")
        outcome = None
        try:
            act()
        except c_api.StatusError as error:
            outcome = error
        calls = standin.calls()
        standin.configure()
        if n > len(calls):
            assert outcome is None
            return
        yield calls[n - 1].split()[0], outcome


def held(vendor: Vendor, standin: StandIn, ptr: int, size: int) -> bool:
    """Whether the vendor has locked the range; always true for mlock, which only the map records."""
    if vendor.whole_pages:
        ptr, size = ptr & -PAGE, ((ptr + size - 1) & -PAGE) + PAGE - (ptr & -PAGE)
    return vendor.pinned is None or (ptr, size) in standin.registrations()


def test_opening_fails_and_works_later(vendor: Vendor, standin: StandIn) -> None:
    # Must be the first test in this process: an opened device stays open.
    for call, outcome in each_failure(standin, vendor, lambda: c_api.Map(vendor.device)):
        if outcome is None:
            assert call in vendor.unheard or vendor.pinned is None  # the map's own memory need not be locked
            continue
        assert outcome.status in ("PINNING_UNAVAILABLE", "PINNING_VENDOR_ERROR"), (call, outcome)
        assert vendor.named in outcome.text or call in vendor.unheard
    kind, _, _ = vendor.device.partition(":")
    with pytest.raises(c_api.StatusError, match=f"there is no {kind}:7") as refused:
        c_api.Map(f"{kind}:7")
    assert refused.value.status == "PINNING_UNAVAILABLE"


def test_lock_and_unlock(vendor: Vendor, standin: StandIn, native: c_api.Map) -> None:
    memory = Memory(3)
    ptr, size = memory.ptr + 100, 2 * PAGE
    device_ptr = native.lock(ptr, size)
    assert held(vendor, standin, ptr, size)
    assert native.find(ptr, size) == (ptr, size, device_ptr, size, 1, 0)
    before = standin.calls()
    assert native.lock(ptr + 10, 20) == device_ptr + 10
    native.unlock(ptr + 5)
    assert standin.calls() == before
    native.unlock(ptr + size - 1)
    assert native.regions() == []


def test_a_lock_fails_without_a_trace(vendor: Vendor, standin: StandIn, native: c_api.Map) -> None:
    memory, failed = Memory(1), set()
    for call, outcome in each_failure(standin, vendor, lambda: native.lock(memory.ptr, PAGE)):
        if outcome:
            failed.add(call)
            assert native.regions() == []
            assert standin.registrations() == set()
            assert vendor.named in outcome.text or call in vendor.unheard
        else:
            assert call in vendor.unheard
            native.unlock(memory.ptr)
    native.unlock(memory.ptr)  # the lock of the last round, in which nothing failed
    assert failed & set(LOCKING)


def test_an_unlock_that_fails_leaves_the_lock(vendor: Vendor, standin: StandIn, native: c_api.Map) -> None:
    memory, failed = Memory(1), 0
    native.lock(memory.ptr, PAGE)
    for call, outcome in each_failure(standin, vendor, lambda: native.unlock(memory.ptr)):
        if outcome:
            failed += 1
            assert outcome.status == "PINNING_VENDOR_ERROR"
            assert held(vendor, standin, memory.ptr, PAGE)
            assert native.find(memory.ptr, PAGE) is not None
        else:
            assert call in vendor.unheard
            native.lock(memory.ptr, PAGE)
    assert failed


def test_memory_that_somebody_else_has_pinned(vendor: Vendor, standin: StandIn, native: c_api.Map) -> None:
    if vendor.pinned is None:
        pytest.skip("nobody can tell what others have locked by mlock")
    memory = Memory(4)
    with vendor.pinned(memory.ptr + PAGE, 2 * PAGE):
        native.lock(memory.ptr + PAGE + 10, 20)
        region = native.find(memory.ptr + PAGE, 2 * PAGE)
        assert region is not None and region.external
        assert not [call for call in standin.calls() if "nlock" in call or "nregister" in call]
        native.unlock(memory.ptr + PAGE)
        assert held(vendor, standin, memory.ptr + PAGE, 2 * PAGE)
        assert native.lock_mapped(memory.ptr + PAGE, PAGE, c_api.OFF)
        for start, size in [(memory.ptr, PAGE + 1), (memory.ptr + 3 * PAGE - 1, 2)]:
            with pytest.raises(c_api.StatusError, match="PARTIAL_OVERLAP"):
                native.lock(start, size)
        native.unlock_unmapped(memory.ptr + PAGE)
        assert native.regions() == []
        native.lock(memory.ptr + PAGE, 1)
    native.refresh()
    assert native.regions() == []


def test_memory_that_is_not_there(vendor: Vendor, standin: StandIn, native: c_api.Map) -> None:
    memory = Memory(3)
    memory.unmap(1)
    with pytest.raises(c_api.StatusError) as refused:
        native.lock(memory.ptr, 3 * PAGE)
    assert refused.value.status in ("PINNING_INVALID_RANGE", "PINNING_VENDOR_ERROR")
    assert "mapped" in refused.value.text or "there is no memory" in refused.value.text
    assert native.lock_mapped(memory.ptr, 3 * PAGE, c_api.ON) == 0
    native.unlock_unmapped(memory.ptr)


def test_memory_that_goes_while_it_is_locked(vendor: Vendor, native: c_api.Map) -> None:
    memory = Memory(3)
    native.lock(memory.ptr, 3 * PAGE)
    memory.unmap(1)
    if watch_problem() is None:
        with pytest.raises(c_api.StatusError, match="NOT_LOCKED"):
            native.unlock(memory.ptr)
        native.lock(memory.ptr, PAGE)  # first unlocks the removed region at the vendor
    native.unlock(memory.ptr)


def test_fork(vendor: Vendor, standin: StandIn, native: c_api.Map) -> None:
    memory = Memory(1)
    native.lock(memory.ptr, 10)

    def in_child() -> None:
        assert native.regions() == []
        if vendor.pinned is None:
            before = len(standin.calls("munlock"))
            native.lock(memory.ptr + 100, 10)
            native.unlock(memory.ptr + 100)  # the lock in the same page is the parent's
            assert len(standin.calls("munlock")) > before
            return
        with pytest.raises(c_api.StatusError, match="is a fork of process") as refused:
            native.lock(memory.ptr, PAGE)
        assert refused.value.status == "PINNING_UNAVAILABLE"

    run_in_child(in_child)
    native.unlock(memory.ptr)

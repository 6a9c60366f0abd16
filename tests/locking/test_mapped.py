# SPDX-License-Identifier: Apache-2.0
"""Automatic locking of buffers that a runtime maps: the policy of PINNING_LOCK_MAPPED, and locks of other callers.

The rules of each policy are those of the map's random machine, tests/map/test_pinned_map_machine.py.
"""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import pytest

import pinning
from fake_device import FOREIGN_OFFSET, LOCKED_OFFSET, WAIT, Background, Call, FakeDevice
from pinning import LockLimitError, PinningError, VendorError
from pinning.locking.mapped import lock_mapped, unlock_unmapped
from pinning.map.pinned_map import watch_problem
from pinning.plugin import LockLimit

POLICIES = ("off", "on", "mandatory")
LOCKING = ("on", "mandatory")
BASE, SIZE = 0x10000, 0x1000


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets PINNING_LOCK_MAPPED."""
    monkeypatch.delenv("PINNING_LOCK_MAPPED", raising=False)
    return lambda value: monkeypatch.setenv("PINNING_LOCK_MAPPED", value)


def address_of(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


# ---- the policy ----


def test_the_policy_is_read_at_each_call_and_off_by_default(device: FakeDevice, policy: Any) -> None:
    locked = 0
    arrays = [np.zeros(100) for _ in range(7)]
    for values, value in zip(arrays, (None, "on", "OFF", "mandatory", "", "On", "MANDATORY"), strict=True):
        if value is not None:
            policy(value)
        locks = value is not None and value.lower() in LOCKING
        locked += locks
        expected = address_of(values) + LOCKED_OFFSET if locks else None
        assert lock_mapped(values, device=device) == expected
        assert pinning.is_locked(values, device=device) == locks
        assert device.count("data_lock") == len(device.locked) == locked
    for values in arrays:
        unlock_unmapped(values, device=device)
    assert device.locked == {}


@pytest.mark.parametrize("value", ["yes", "1", "on ", "true"])
def test_a_value_that_is_none_is_an_error(device: FakeDevice, policy: Any, value: str) -> None:
    policy(value)
    with pytest.raises(PinningError, match=f"PINNING_LOCK_MAPPED.*{value!r}.*off, on or mandatory.*unset"):
        lock_mapped(np.zeros(1), device=device)
    with pytest.raises(PinningError, match=f"{value!r}.*'mandatory'"):
        pinning.pinned_map(device).lock_mapped(BASE, SIZE, value)  # type: ignore[arg-type]
    assert device.calls == []


def test_addresses_sizes_and_read_only_buffers(device: FakeDevice, policy: Any) -> None:
    policy("on")
    values, constant = np.zeros(100), bytes(100)
    start = address_of(values)
    lock_mapped((start, 10), device=device)
    assert device.locked == {start: 10}
    unlock_unmapped(start, device=device)
    lock_mapped(values, 20, device=device)
    assert device.locked == {start: 20}
    unlock_unmapped(np.uint64(start), device=device)
    lock_mapped(constant, device=device)
    assert device.calls[-1].read_only is True
    unlock_unmapped(constant, device=device)


# ---- failures ----


@pytest.mark.parametrize("value", LOCKING)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_ctrl_c_is_no_refusal(
    device: FakeDevice, policy: Any, value: str, error: type[BaseException], calls_before: int
) -> None:
    policy(value)
    device.fail(error(), calls_before)
    with pytest.raises(error):
        lock_mapped(np.zeros(100), device=device)


@pytest.mark.parametrize("value", POLICIES)
def test_no_room(device: FakeDevice, policy: Any, value: str) -> None:
    policy(value)
    device.limit = LockLimit("RLIMIT_FAKE", 5000, 1000, "fakectl --raise")
    values, pinned = np.zeros(1000), np.zeros(1000)
    device.foreign = {address_of(pinned): 8000}
    if value == "mandatory":
        with pytest.raises(LockLimitError, match="RLIMIT_FAKE"):
            lock_mapped(values, device=device)
    else:
        assert lock_mapped(values, device=device) is None
        unlock_unmapped(values, device=device)
    assert lock_mapped(pinned, device=device) == address_of(pinned) + FOREIGN_OFFSET
    unlock_unmapped(pinned, device=device)
    assert pinning.regions(device) == []
    assert not device.count("data_lock")


# ---- whose lock it is ----


def test_each_mapping_is_undone_once_and_those_that_locked_nothing_first(device: FakeDevice, policy: Any) -> None:
    values = np.zeros(100)
    for value in ("off", "on", "mandatory"):
        policy(value)
        lock_mapped(values, device=device)
    policy("off")
    for left in (2, 1):
        unlock_unmapped(values, device=device)
        (region,) = pinning.regions(device)
        assert region.references == left
    device.fail(VendorError("fakeCall", 999, "FAKE_UNKNOWN"))
    with pytest.raises(VendorError):
        unlock_unmapped(values, device=device)
    unlock_unmapped(values, device=device)
    with pinning.lock(values, device=device) as lock:
        unlock_unmapped(values, device=device)
        assert lock.held


def test_a_mapping_whose_lock_others_have_ended_takes_no_turn(device: FakeDevice, policy: Any) -> None:
    values = np.zeros(100)
    policy("on")
    lock_mapped(values, device=device)
    pinning.pinned_map(device).unlock(values.ctypes.data)
    lock_mapped(values, device=device)
    unlock_unmapped(values, device=device)  # of the first
    assert pinning.is_locked(values, device=device)
    unlock_unmapped(values, device=device)
    assert not pinning.is_locked(values, device=device)


def test_the_vendor_is_asked_without_the_map_in_hand(device: FakeDevice) -> None:
    pinned = pinning.PinnedMap(device)
    with device.stopping("is_pinned_ptr", BASE) as gate:
        mapping = Background(lambda: pinned.lock_mapped(BASE, SIZE, "off"))
        assert gate.reached.wait(WAIT)
        Background(lambda: pinned.lock(BASE + SIZE, SIZE)).result()
        same = Background(lambda: pinned.lock(BASE, SIZE))
        threading.Event().wait(0.05)
        assert pinned.find(BASE) is None
        assert same.is_alive()
    assert mapping.result() is None
    assert same.result() == BASE + LOCKED_OFFSET
    pinned.unlock_unmapped(BASE)
    assert [region.references for region in pinned] == [1, 1]
    pinned.close()


# ---- devices and lifetime ----


def test_devices_have_the_methods(device: FakeDevice, policy: Any) -> None:
    policy("mandatory")
    values, host = np.zeros(100), pinning.device("host:0")
    assert isinstance(host, pinning.plugin.AutomaticLocking)
    for each, offset in ((host, 0), (device, LOCKED_OFFSET)):
        assert each.lock_mapped(values) == address_of(values) + offset
        assert pinning.is_locked(values, device=each)
        each.unlock_unmapped(values)
        assert not pinning.is_locked(values, device=each)
        assert each.lock_mapped(address_of(values), 80) == address_of(values) + offset
        each.unlock_unmapped(address_of(values))
        assert pinning.regions(each) == []
    assert device.calls[-2:] == [Call("data_lock", address_of(values), 80), Call("data_unlock", address_of(values))]


def test_a_mapped_buffer_is_not_kept_alive(device: FakeDevice, policy: Any) -> None:
    policy("on")
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    lock_mapped(memory, device=device)
    start = next(iter(pinning.regions(device))).start
    memory.close()
    noticed = watch_problem() is None
    assert len(pinning.regions(device)) == (0 if noticed else 1)
    unlock_unmapped(start, device=device)
    with pinning.lock(bytes(10), device=device):  # the next caller unlocks the unmapped region at the device
        pass
    assert device.locked == {}


@pytest.mark.parametrize("value", POLICIES)
def test_a_closed_map(policy: Any, value: str) -> None:
    other = FakeDevice("fake:closing")
    values = np.zeros(100)
    policy("on")
    lock_mapped(values, device=other)
    pinning.pinned_map(other).close()
    assert other.locked == {}
    policy(value)
    if value == "mandatory":
        with pytest.raises(PinningError, match="closed"):
            lock_mapped(values, device=other)
    else:
        assert lock_mapped(values, device=other) is None
    unlock_unmapped(values, device=other)
    assert other.wrong == []

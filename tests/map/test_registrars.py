# SPDX-License-Identifier: Apache-2.0
"""Registrars: registrations that follow a map's locks, once for each region, all or none."""

from __future__ import annotations

import gc
import subprocess
import sys
from unittest.mock import Mock

import pytest

from fake_device import FakeDevice
from own_process import python
from pinning import InvalidRangeError, PinnedMap, PinningError, RegistrarError, VendorError

BASE = 0x10000


class Book:
    """Records what is registered; refuses one call, after `refuse_after` or `refuse_removals` others."""

    def __init__(self, device: FakeDevice | None = None) -> None:
        self.known: dict[int, int] = {}
        self.calls = 0
        self.device = device
        self.refuse_after = self.refuse_removals = -1

    def register(self, ptr: int, size: int) -> int:
        self.calls += 1
        self.refuse_after -= 1
        if self.refuse_after == -1:
            raise OSError("no room in the card")
        if self.device is not None:
            assert any(base <= ptr and ptr + size <= base + whole for base, whole in self.device.locked.items())
        assert ptr not in self.known
        self.known[ptr] = size
        return ptr

    def unregister(self, ptr: int) -> None:
        self.refuse_removals -= 1
        if self.refuse_removals == -1:
            raise OSError("busy")
        if self.device is not None:
            assert any(base <= ptr < base + whole for base, whole in self.device.locked.items())
        del self.known[ptr]


@pytest.fixture
def on(device: FakeDevice) -> PinnedMap:
    return PinnedMap(device)


@pytest.mark.parametrize("refuse_after", [0, 1, 3])
def test_a_registrar_that_refuses_any_piece_undoes_all(on: PinnedMap, device: FakeDevice, refuse_after: int) -> None:
    first, second = Book(device), Book(device)
    on.add_registrar(first.register, first.unregister)
    on.add_registrar(second.register, second.unregister, piece=300, name="the card")
    device.fail(VendorError("fakeCall", 1, "FAKE"))
    with pytest.raises(VendorError):
        on.lock(BASE, 1000)
    assert first.calls == second.calls == 0
    second.refuse_after = refuse_after
    with pytest.raises(RegistrarError, match=r"the card.*no room in the card") as refused:
        on.lock(BASE, 1000)
    assert isinstance(refused.value.__cause__, OSError)
    assert (first.known, second.known, device.locked, len(on)) == ({}, {}, {}, 0)
    first.device = second.device = None  # of which the vendor locks other pieces
    on.lock(BASE, 1000, piece=128)
    assert second.known == {BASE: 300, BASE + 300: 300, BASE + 600: 300, BASE + 900: 100}, "the pieces that it wants"
    on.unlock(BASE)
    assert (first.known, second.known) == ({}, {})


def test_a_registrar_that_does_not_give_back(on: PinnedMap, device: FakeDevice) -> None:
    book = Book(device)
    on.add_registrar(book.register, book.unregister, name="the card")
    on.lock(BASE, 1000)
    book.refuse_removals = 0
    with pytest.raises(RegistrarError, match=r"the card.*busy"):
        on.unlock(BASE)
    assert on.find(BASE, 1000) is not None
    assert device.locked == {BASE: 1000}
    on.unlock(BASE)
    assert (book.known, device.locked) == ({}, {})


@pytest.mark.parametrize("handle", [(1, 2), (7,), ()])
def test_a_handle_may_be_a_tuple(on: PinnedMap, handle: tuple[int, ...]) -> None:
    given_back: list[object] = []
    on.add_registrar(lambda ptr, size: handle, given_back.append)
    on.lock(BASE, 1000)
    on.unlock(BASE)
    assert given_back == [handle]


def test_a_refused_lock_that_the_vendor_does_not_undo_is_undone_later(on: PinnedMap, device: FakeDevice) -> None:
    book = Book()
    book.refuse_after = 0
    on.add_registrar(book.register, book.unregister)
    with device.stopping("data_unlock", BASE) as gate:
        gate.open(VendorError("fakeUnlock", 1, "FAKE"))
        with pytest.raises(RegistrarError):
            on.lock(BASE, 1000)
    assert device.locked == {BASE: 1000}
    on.unlock(BASE)
    assert (device.locked, len(on)) == ({}, 0)


def test_a_removal_that_is_refused_for_one_region_is_one_for_the_others(on: PinnedMap, device: FakeDevice) -> None:
    book = Book()
    registrar = on.add_registrar(book.register, book.unregister)
    on.lock(BASE, 1000)
    on.lock(BASE + 5000, 100)
    book.refuse_removals = 0
    with pytest.raises(RegistrarError, match="busy"):
        registrar.remove()
    assert len(book.known) == 1
    on.unlock(BASE)
    on.unlock(BASE + 5000)
    assert device.locked == {}


def test_once_one_is_removed_the_others_go_on(on: PinnedMap, device: FakeDevice) -> None:
    books = [Book(device) for _ in range(3)]
    added = [on.add_registrar(book.register, book.unregister) for book in books]
    on.lock(BASE, 1000)
    for left in (2, 1, 0):
        added[left].remove()
        on.lock(BASE + (3 - left) * 0x10000, 1000)
        assert [len(book.known) for book in books] == [4 - left] * left + [0] * (3 - left)


def test_what_is_locked_already_is_told_at_once(on: PinnedMap, device: FakeDevice) -> None:
    on.lock(BASE, 1000)
    on.lock(BASE + 5000, 100)
    device.foreign[BASE + 9000] = 100
    on.lock(BASE + 9000, 50)  # external
    on.register(BASE + 10000, 100, 1)
    book = Book()
    registrar = on.add_registrar(book.register, book.unregister)
    assert book.known == {BASE: 1000, BASE + 5000: 100}
    registrar.remove()
    assert book.known == {}
    assert "removed" in repr(registrar)
    registrar.remove()
    refusing = Book()
    refusing.refuse_after = 1
    with pytest.raises(RegistrarError):
        on.add_registrar(refusing.register, refusing.unregister)
    assert refusing.known == {}
    refusing.refuse_after, refusing.refuse_removals = 1, 0
    with pytest.raises(RegistrarError, match="no room in the card"):  # not that it does not give back either
        on.add_registrar(refusing.register, refusing.unregister)
    on.unlock(BASE)
    assert refusing.calls == 4
    on.close()


def test_bad_arguments(on: PinnedMap) -> None:
    with pytest.raises(TypeError, match="register is 3"):
        on.add_registrar(3, print)  # type: ignore[arg-type]
    for piece in (0, -1, 1 << 64):
        with pytest.raises(InvalidRangeError, match="piece"):
            on.add_registrar(print, print, piece=piece)
    on.close()
    with pytest.raises(PinningError, match="closed"):
        on.add_registrar(print, print)


def test_ctrl_c_in_a_registrar_undoes_the_lock(on: PinnedMap, device: FakeDevice) -> None:
    first = Book(device)
    on.add_registrar(first.register, first.unregister)
    registrar = on.add_registrar(Mock(side_effect=KeyboardInterrupt), print)
    with pytest.raises(KeyboardInterrupt):
        on.lock(BASE, 1000)
    assert (first.known, device.locked) == ({}, {})
    registrar.remove()


def test_a_registrar_that_removes_itself_within_its_call_is_refused(on: PinnedMap, device: FakeDevice) -> None:
    registrar = on.add_registrar(lambda ptr, size: registrar.remove(), print)
    with pytest.raises(RegistrarError, match="cannot be removed within a call"):
        on.lock(BASE, 1000)
    registrar.remove()
    assert device.locked == {}


def test_a_dropped_map_and_its_registrars_go(device: FakeDevice) -> None:
    class Owner:
        def __init__(self) -> None:
            self.map = PinnedMap(device)
            self.book = Book(device)
            self.registrar = self.map.add_registrar(self.register, self.book.unregister)  # a cycle

        def register(self, ptr: int, size: int) -> object:
            return self.book.register(ptr, size)

    owner = Owner()
    owner.map.lock(BASE, 1000)
    book = owner.book
    del owner
    gc.collect()
    assert (book.known, device.locked) == ({}, {})


@pytest.mark.parametrize("call", ["register", "unregister"])
def test_the_exit_does_not_wait_for_a_daemon_thread_in_a_registrar(call: str) -> None:
    program = f"""
import threading
import pinning
from fake_device import FakeDevice
entered, never = threading.Event(), threading.Event()
device = FakeDevice()
def stay(*_):
    entered.set()
    never.wait()
pinning.pinned_map(device).add_registrar(**({{"register": lambda *_: 1, "unregister": print}} | {{"{call}": stay}}))
threading.Thread(target=lambda: pinning.lock(bytearray(4096), device=device).unlock(), daemon=True).start()
entered.wait()
"""
    assert python("-c", program).returncode == 0


def test_nothing_is_left_at_exit() -> None:
    program = """
import numpy, pinning
array = numpy.zeros(4096, "u1")
pinning.pinned_map("host:0").add_registrar(lambda ptr, size: print("registered", size), lambda _: print("unregistered"))
lock = pinning.lock(array, device="host:0")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.split()) == (0, ["registered", "4096", "unregistered"]), run.stderr

# SPDX-License-Identifier: Apache-2.0
"""A background lock against a model of its bytes, with other callers' actions at each piece and vendor failures."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pinning
from fake_device import LOCKED_OFFSET, Background, FakeDevice
from pinning import PartialOverlapError, PinnedMap, PinningError, StillLockedError, VendorError
from pinning.map.pinned_map import Hold

WAIT = 60
REFUSED = VendorError("fakeCall", 1, "FAKE")
UNDO_REFUSED = VendorError("fakeUndo", 2, "FAKE")

Action = tuple[str, int, int]
actions = st.tuples(
    st.sampled_from(["lock", "lock", "unlock", "find", "across", "drop", "cancel"]),
    st.integers(0, 47),
    st.integers(1, 48),
)


class Meanwhile(FakeDevice):
    """Calls `before` before it locks each piece; refuses one unlock, after `unlocks_before_a_refusal` others."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[int], None] | None = None
        self.unlocks_before_a_refusal: int | None = None

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        if self.before:
            self.before(ptr)
        return super().data_lock(ptr, size, read_only)

    def data_unlock(self, ptr: int) -> None:
        if self.unlocks_before_a_refusal is not None:
            self.unlocks_before_a_refusal -= 1
            if self.unlocks_before_a_refusal < 0:
                self.unlocks_before_a_refusal = None
                raise UNDO_REFUSED
        super().data_unlock(ptr)


@contextmanager
def looking_up(on: PinnedMap, ptr: int, size: int, piece: int) -> Iterator[None]:
    """A thread keeps looking up the range; each result must be a possible state of the region."""
    wrong, stop = list[object](), threading.Event()

    def look() -> None:
        while not stop.is_set():
            region = on.find(ptr)
            if region is not None and (
                (region.start, region.whole, region.device_ptr) != (ptr, size, ptr + LOCKED_OFFSET)
                or (region.size % piece and region.size != size)
            ):
                wrong.append(region)

    thread = Background(look)
    yield
    stop.set()
    thread.result()
    assert wrong == []


class Scene:
    """One lock in pieces, the actions of other callers at each piece, and the checks."""

    def __init__(
        self, size: int, piece: int, script: list[list[Action]], refused: int | None, undo_refused: int | None
    ):
        self.device = Meanwhile()
        self.on = pinning.pinned_map(self.device)
        self.buffer = np.ones(size, np.uint8)
        self.ptr, self.size, self.piece = self.buffer.ctypes.data, size, piece
        self.script, self.refused, self.undo_refused = script, refused, undo_refused
        self.pending: list[pinning.PendingLock] = []  # its only reference
        self.begun = threading.Event()
        self.inside: list[Hold] = []
        self.asked = 0  # pieces that the vendor has locked, or is locking
        self.dropped = self.cancelled = self.was_refused = False
        self.problems: list[BaseException] = []
        gc.collect()
        self.used_before = pinning.budget().used

    @property
    def locked(self) -> int:
        return min(self.asked * self.piece, self.size)

    def before_a_piece(self, ptr: int) -> None:
        if not self.ptr <= ptr < self.ptr + self.size:
            return
        assert self.begun.wait(WAIT)
        try:
            for what, at, size in self.script[self.asked] if self.asked < len(self.script) else []:
                self.act(what, at % self.size, size)
        except BaseException as error:
            self.problems.append(error)
        if self.asked == self.refused:
            self.was_refused = True
            self.device.unlocks_before_a_refusal = self.undo_refused
            raise REFUSED
        self.asked += 1

    def act(self, what: str, at: int, size: int) -> None:
        prefix = self.locked
        if what == "lock" and prefix:
            at %= prefix
            size = size % (prefix - at) + 1
            self.inside.append(Hold(self.on, self.ptr + at, size, None, None, None))
            assert self.inside[-1].device_ptr == self.ptr + at + LOCKED_OFFSET
        elif what == "unlock" and self.inside:
            hold = self.inside.pop(at % len(self.inside))
            assert hold.held
            assert hold.unlock()
        elif what == "find":
            found = self.on.find(self.ptr + at, size)
            assert (found is not None) == (at + size <= prefix)
            if found is not None:
                assert (found.start, found.size, found.whole) == (self.ptr, prefix, self.size)
                assert found.piece == min(self.piece, self.size)
                assert found.references == 1 + len(self.inside)
        elif what == "across" and at and prefix:
            with pytest.raises(PartialOverlapError):
                self.on.lock(self.ptr + at, self.size)
        elif what in ("drop", "cancel") and not self.dropped and not self.cancelled:
            self.dropped, self.cancelled = what == "drop", what == "cancel"
            self.device.unlocks_before_a_refusal = self.undo_refused
            if self.cancelled:
                self.pending[0]._abandon()
            else:
                self.pending.clear()

    def bytes_locked(self) -> int:
        return sum(size for base, size in self.device.locked.items() if self.ptr <= base < self.ptr + self.size)

    def run(self) -> None:
        self.device.before = self.before_a_piece
        self.pending.append(pinning.lock_async(self.buffer, device=self.device, piece=self.piece))
        last = pinning.lock_async(np.ones(1, np.uint8), device=self.device)  # starts once the other has ended
        self.begun.set()
        last.wait(timeout=WAIT)
        self.device.unlocks_before_a_refusal = None
        last.cancel()
        self.device.before = None
        gc.collect()
        assert self.problems == []
        if self.was_refused or self.dropped or self.cancelled:
            self.check_ended()
        else:
            lock = self.pending[0].wait()
            assert self.bytes_locked() == self.size
            assert lock.region is not None
            assert lock.region.references == 1 + len(self.inside)
            lock.unlock()
        for hold in self.inside:
            assert pinning.budget().used - self.used_before == self.bytes_locked() > 0
            assert hold.held
            assert hold.unlock()
        assert self.device.locked == {}
        assert list(self.on) == []
        assert pinning.budget().used == self.used_before
        pinning.lock(self.buffer, device=self.device).unlock()
        assert self.device.wrong == []

    def check_pending(self, pending: pinning.PendingLock) -> None:
        for _ in range(2):
            with pytest.raises(PinningError) as raised:
                pending.wait(timeout=WAIT)
            assert self.cancelled or raised.value is REFUSED
        try:
            pending.cancel()
        except VendorError as error:
            assert error in (REFUSED, UNDO_REFUSED)
            assert self.bytes_locked() and not self.inside, "something is left that could not be undone"
        assert (pending.done(), pending.progress) == (True, 0)

    def check_ended(self) -> None:
        for pending in self.pending:
            self.check_pending(pending)
        assert pinning.budget().used - self.used_before == self.bytes_locked()
        if self.inside:
            assert self.bytes_locked() == self.locked
            region = self.on.find(self.ptr, self.locked)
            assert region is not None
            assert (region.size, region.whole, region.references) == (self.locked, self.size, len(self.inside))
            if self.locked < self.size:
                with pytest.raises(StillLockedError, match=f"cut short.* first {self.locked} bytes"):
                    self.on.lock(self.ptr + self.locked, 1)
        elif self.bytes_locked():
            assert self.undo_refused is not None
            assert self.on.find(self.ptr) is None
            with pytest.raises(StillLockedError):
                self.on.lock(self.ptr, 1)
            self.on.unlock(self.ptr)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.integers(1, 48),
    piece=st.integers(1, 16),
    script=st.lists(st.lists(actions, max_size=3), max_size=8),
    refused=st.none() | st.integers(0, 3) | st.integers(0, 8),
    undo_refused=st.none() | st.integers(0, 3),
)
def test_whatever_happens_at_each_piece(
    size: int, piece: int, script: list[list[Action]], refused: int | None, undo_refused: int | None
) -> None:
    scene = Scene(size, piece, script, refused, undo_refused)
    with warnings.catch_warnings(), looking_up(scene.on, scene.ptr, size, min(piece, size)):
        warnings.simplefilter("ignore", ResourceWarning)
        scene.run()

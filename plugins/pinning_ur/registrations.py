# SPDX-License-Identifier: Apache-2.0
"""Host memory registered in one context, page by page, for locks that begin and end anywhere."""

from __future__ import annotations

import ctypes
import mmap
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pinning.errors import PinningError, VendorError
from pinning_ur.loader import call, exports
from pinning_ur.mappings import Pages, are_writable, require_mapped
from pinning_ur.release import IMPORT, READ_ONLY, UNSUPPORTED_FEATURE, WAYS_TO_LOCK


class Registration:
    """Pages that one call has registered, with the pages of every lock that needs some of them."""

    def __init__(self, pages: Pages, users: list[Pages], unregister: str) -> None:
        self.pages = pages
        self.users = users
        self.unregister = unregister


class Registrations:
    """All that is registered in one context, shared by its devices.

    A context registers whole pages, and each of them once. A lock is one registration where nothing else holds a page
    of it; where a neighbour holds the page at its border, that page stays the neighbour's registration, used by both.
    A registration cannot shrink, so when the neighbour goes first, its registration goes too and the page at the border
    is registered alone. Between those two calls that page is not registered, so a lock should not go while a device is
    at work on memory in the page of its border. Splitting every lock at its borders instead would make every copy of a
    whole buffer cross from one registration into another, which adapters treat as unregistered memory or refuse.

    A change of a range waits for a change of the same pages to end, and for no other.
    """

    def __init__(self, context: Callable[[], int], adapter: str) -> None:
        self._context = context
        self._adapter = adapter
        self._changed = threading.Condition(threading.Lock())
        self._changing: list[Pages] = []
        self._registered: list[Registration] = []  # ascending, disjoint
        self._possible: bool | None = None  # not asked yet

    def lock(self, pages: Pages, check: Callable[[list[Pages]], None], writable: bool) -> None:
        """Register those of the `pages` that are not registered yet.

        `check` raises where those are not to be registered. `writable`: they are known to be; else it is looked up.

        Raises
        ------
        InvalidRangeError
            Some of them are not mapped, and the adapter would not say so.
        VendorError
            The adapter refused; nothing has changed.
        """
        with self._alone(pages):
            neighbours = self._touching(pages)
            gaps = _gaps(pages, [neighbour.pages for neighbour in neighbours])
            check(gaps)  # here, where no other thread can register them meanwhile and be taken for someone else
            made: list[Registration] = []
            try:
                for gap in gaps:
                    made.append(self._register(gap, [pages], writable))
            except BaseException:
                for registration in made:
                    with suppress(VendorError):
                        self._unregister(registration)
                raise
            for neighbour in neighbours:
                neighbour.users.append(pages)

    def unlock(self, pages: Pages) -> None:
        """Undo one `lock` of the same pages; those that other locks need stay registered.

        Raises
        ------
        VendorError
            The adapter refused; everything is as it was.
        """
        with self._alone(pages):
            undo: list[Callable[[], object]] = []
            try:
                for registration in self._touching(pages):
                    self._release(registration, pages, undo)
            except BaseException:
                for step in reversed(undo):
                    with suppress(PinningError):
                        step()
                raise

    @property
    def possible(self) -> bool:
        """Whether the adapter can register host memory at all, of which no call but such a call tells.

        It is asked to unregister a page that nobody has registered, which is wrong where it can, and unsupported where
        it cannot.
        """
        if self._possible is None:
            page = mmap.mmap(-1, mmap.PAGESIZE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            self._possible = any(self._supports(unregister, address) for _, unregister in WAYS_TO_LOCK)
        return self._possible

    def holds(self, address: int) -> bool:
        """Whether the page at `address` is registered here, or just changing."""
        with self._changed:
            ranges = [*self._changing, *(each.pages for each in self._overlapping((address, address + 1)))]
        return any(start <= address < end for start, end in ranges)

    def _supports(self, unregister: str, address: int) -> bool:
        if not exports(unregister):
            return False
        try:
            call(unregister, self._context(), address)
        except VendorError as error:
            return error.code != UNSUPPORTED_FEATURE
        return True

    def _release(self, registration: Registration, pages: Pages, undo: list[Callable[[], object]]) -> None:
        users = list(registration.users)
        users.remove(pages)
        needed = _union(registration.pages, users)
        if needed == [registration.pages]:
            registration.users.remove(pages)
            undo.append(lambda: registration.users.append(pages))
            return
        self._unregister(registration)
        undo.append(lambda: self._register(registration.pages, registration.users))
        for part in needed:
            kept = self._register(part, [user for user in users if _meet(user, part)])
            undo.append(lambda kept=kept: self._unregister(kept))  # type: ignore[misc]

    def _register(self, pages: Pages, users: list[Pages], writable: bool = False) -> Registration:
        start, end = pages
        missing: list[str] = []
        refusal = ("", 0, "")
        for register, unregister in WAYS_TO_LOCK:
            if not exports(register):
                missing.append(f"this release of the loader has no {register}")
                continue
            options: tuple[object, ...] = ()
            if register == IMPORT:
                require_mapped(pages)
            else:
                options = (None if writable or are_writable(pages) else ctypes.byref(READ_ONLY),)
            try:
                call(register, self._context(), start, end - start, *options)
            except VendorError as error:
                if error.code != UNSUPPORTED_FEATURE:
                    raise
                missing.append(f"its adapter has no {register}")
                refusal = error.call, error.code, error.name  # the error itself would keep the caller's buffer alive
                continue
            except BaseException:
                # Ctrl-C during a long registration is raised here once the adapter has returned, its result lost.
                with suppress(VendorError):
                    call(unregister, self._context(), start)
                raise
            registration = Registration(pages, users, unregister)
            with self._changed:
                self._registered.insert(self._place(start), registration)
            return registration
        raise VendorError(
            *refusal,
            f"host memory cannot be locked for {self._adapter} devices: {' and '.join(missing)}; "
            "host:0 locks memory without a device",
        )

    def _unregister(self, registration: Registration) -> None:
        call(registration.unregister, self._context(), registration.pages[0])
        with self._changed:
            self._registered.remove(registration)

    @contextmanager
    def _alone(self, pages: Pages) -> Iterator[None]:
        """Have the pages alone, and with them all of the registrations that share one with them."""
        with self._changed:
            span = self._span(pages)
            while any(_meet(span, other) for other in self._changing):
                self._changed.wait()
                span = self._span(pages)
            self._changing.append(span)
        try:
            yield
        finally:
            with self._changed:
                self._changing.remove(span)
                self._changed.notify_all()

    def _span(self, pages: Pages) -> Pages:
        touching = [pages, *(each.pages for each in self._overlapping(pages))]
        return min(start for start, _ in touching), max(end for _, end in touching)

    def _touching(self, pages: Pages) -> list[Registration]:
        with self._changed:
            return self._overlapping(pages)

    def _overlapping(self, pages: Pages) -> list[Registration]:
        start, end = pages
        first = bisect_left(self._registered, start + 1, key=lambda each: each.pages[1])
        return self._registered[first : self._place(end)]

    def _place(self, start: int) -> int:
        return bisect_left(self._registered, start, key=lambda each: each.pages[0])


def _meet(one: Pages, other: Pages) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _gaps(pages: Pages, taken: list[Pages]) -> list[Pages]:
    """The parts of `pages` that are in none of the ascending, disjoint ranges `taken`."""
    start, end = pages
    gaps = []
    for low, high in taken:
        if start < low:
            gaps.append((start, low))
        start = high
    if start < end:
        gaps.append((start, end))
    return gaps


def _union(pages: Pages, ranges: list[Pages]) -> list[Pages]:
    """The parts of `pages` that are in one of the `ranges`, ascending, those that touch joined."""
    parts: list[Pages] = []
    inside = ((max(low, pages[0]), min(high, pages[1])) for low, high in ranges if _meet((low, high), pages))
    for low, high in sorted(inside):
        if parts and low <= parts[-1][1]:
            low, before = parts.pop()
            high = max(high, before)
        parts.append((low, high))
    return parts

# SPDX-License-Identifier: Apache-2.0
"""A vendor's objects that are used again, because to make and to destroy one takes longer than to use it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from pinning.errors import PinningError

T = TypeVar("T")

_MOST = 64


class Spares(Generic[T]):
    """Objects of a vendor's, such as events, that nobody needs any more. Any thread, and any finalizer, may give some.

    Parameters
    ----------
    make : callable
        Makes one; may raise.
    destroy : callable
        Destroys one. After a PinningError it is still there, and is kept.
    """

    def __init__(self, make: Callable[[], T], destroy: Callable[[T], object]) -> None:
        self._make = make
        self._destroy = destroy
        self._spares: deque[T] = deque()
        self._most = _MOST

    def take(self) -> T:
        """One of them, or a new one."""
        try:
            return self._spares.pop()
        except IndexError:
            return self._make()

    def give(self, spare: T) -> None:
        """Keep one for later, or destroy one when there are enough."""
        self._spares.append(spare)
        self._destroy_beyond(self._most)

    def close(self) -> None:
        """Destroy them, and from now on all that are given."""
        self._most = 0
        self._destroy_beyond(0)

    def __del__(self) -> None:
        self.close()

    def _destroy_beyond(self, count: int) -> None:
        # Two threads may do this at once, and finalizers, which have nobody to tell of a failure.
        while len(self._spares) > count:
            try:
                spare = self._spares.popleft()
            except IndexError:
                return
            try:
                self._destroy(spare)
            except PinningError:
                self._spares.append(spare)
                return

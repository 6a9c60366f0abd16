# SPDX-License-Identifier: Apache-2.0
"""Handles: objects that own something, of which there must be one owner."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, NoReturn, Protocol, TypeVar

from pinning.errors import PinningError

T = TypeVar("T")


class Closable(Protocol):
    @property
    def closed(self) -> bool: ...


def refuse_copy(handle: object, instead: str) -> NoReturn:
    """Raise the TypeError of `copy` and `pickle` for a handle: call it in ``__reduce__``, which both of them use."""
    raise TypeError(f"{handle!r} can be neither copied nor pickled: {instead}")


def refuse_closed(handle: Closable) -> None:
    """Raise PinningError if a handle is closed: call it in ``__enter__``."""
    if handle.closed:
        raise PinningError(f"{handle!r} is closed: make another")


class Block(AbstractContextManager[T], Generic[T]):
    """A context manager that does something for as long as its ``with`` blocks last; it warns if it was in none.

    `make` returns the context manager of one block; `call` is the call that returns this object, for the warning.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[T]], call: str) -> None:
        self._make, self._call, self._used = make, call, False
        self._open: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        self._used = True
        manager = self._make()
        entered = manager.__enter__()
        self._open.append(manager)
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._open.pop().__exit__(kind, error, traceback)

    def __del__(self) -> None:
        if not getattr(self, "_used", True):  # unless Ctrl-C has kept it from being made
            warnings.warn(f"{self._call}(...) does nothing without `with`", RuntimeWarning, stacklevel=2)

# SPDX-License-Identifier: Apache-2.0
"""Saves, loads and copies of one file take effect in the order of their calls.

Saves in the background are completed by one queue, in the order in which their calls have returned. All else waits for
those of its file: a save before it renames, a load or a copy before it opens the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from pinning.queues import Event, Queue
from pinning.queues.queue import kept_queue
from pinning.runtime.process import at_exit, emptied_at_fork, exits

_queues: dict[str, Queue] = {}  # of the host, kept for all saves; by their order
# Ends of saves in the background: the real paths of their files.
_pending: dict[threading.Event, Path] = emptied_at_fork({})
_thread = threading.local()  # `completes`: it is the one that completes them


def queue_of_writes() -> Queue:
    """Files are written side by side: the kernel lets only one thread at a time write one."""
    return kept_queue(_queues, "out_of_order", partial(Queue, "host", "out_of_order"))


class _Completing:
    """Completes a save of a file when the queue calls it. It is over then, or if it is dropped without being called."""

    def __init__(self, complete: Callable[[], None]) -> None:
        self._complete, self.over = complete, threading.Event()

    def __call__(self) -> None:
        _thread.completes = True
        try:
            self._complete()
        finally:
            self._end()

    def _end(self) -> None:
        self.over.set()
        _pending.pop(self.over, None)

    __del__ = _end


def complete_in_turn(complete: Callable[[], None], file: Path, wait_for: Iterable[Event]) -> Event:
    """Let the queue call a function that completes a save of a file, after those of earlier calls."""
    completing = _Completing(complete)
    over = completing.over
    event = kept_queue(_queues, "in_order", partial(Queue, "host")).call(completing, wait_for)
    _pending[over] = file  # not before: a signal handler that saves here would wait for what is not in the queue yet
    if over.is_set():
        _pending.pop(over, None)
    if exits():  # another handler saves, and nothing waits any more
        wait_for_saves(file)
    return event


def wait_for_saves(path: str | Path) -> None:
    """Wait until all saves of a file, or of files in a folder, that are now in the background are over.

    Not on the thread that completes them, which calls `sys.unraisablehook` for those that failed.
    """
    if not _pending or hasattr(_thread, "completes"):
        return
    real = Path(os.path.realpath(path))
    for over, file in list(_pending.items()):
        if real == file or real in file.parents:
            over.wait()


def _at_exit() -> None:
    with suppress(KeyboardInterrupt):  # which ends the waiting
        for over in list(_pending):
            over.wait()


at_exit(_at_exit)

# SPDX-License-Identifier: Apache-2.0
"""Reads of files that go over several links: see `pinning.copies.links`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pinning.copies.links import LARGEST_BLOCK, steps_within
from pinning.copies.plan import CopyPath, Step
from pinning.files.file_work import FileCopy, OpenFile, copy_parts
from pinning.queues import Event, Queue


class FileParts:
    """Parts of a file that are read into memory of a device: where to, where from, and how many bytes.

    `early`: the file may be read before the queue reaches the copy. `of`: the copy to which they belong.
    """

    path = CopyPath.STAGED
    to_device = True

    def __init__(
        self, file: OpenFile, parts: Iterable[Sequence[Any]], keep: tuple[object, ...], early: bool, of: FileCopy
    ) -> None:
        self.steps: Sequence[Step] = [Step(int(dst), int(src), int(size), self.path) for dst, src, size, *_ in parts]
        self.nbytes: int = sum(step.size for step in self.steps)
        # otherwise a piece on a peer would be small
        self.is_divided: bool = len(self.steps) * LARGEST_BLOCK <= self.nbytes
        self.reason: str = f"{self.nbytes} bytes, read by threads into pinned blocks"
        self.keep: tuple[object, ...] = keep
        self.of: FileCopy = of
        self._file, self._early = file, early

    def part(self, at: int, size: int) -> FileParts:
        """The parts for `size` of the bytes, from `at` on."""
        return FileParts(self._file, steps_within(self.steps, at, at + size), self.keep, self._early, self.of)

    def submit(self, queue: Queue, steps: Sequence[Step], waits: Iterable[Event]) -> FileCopy:
        return self._copy(queue, steps, waits, ())

    def submit_all(self, queue: Queue, waits: Iterable[Event]) -> FileCopy:
        return self._copy(queue, self.steps, waits, self.keep)

    def make_event(self) -> FileCopy:
        return self.of._another()

    def _copy(self, queue: Queue, steps: Sequence[Step], waits: Iterable[Event], keep: tuple[object, ...]) -> FileCopy:
        parts, early = [step[:3] for step in steps], self._early
        return copy_parts(queue, self._file, parts, in_device=True, wait_for=waits, keep=keep, early=early, of=self.of)

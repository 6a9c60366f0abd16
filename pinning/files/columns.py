# SPDX-License-Identifier: Apache-2.0
"""Columns of one tensor for several devices: its rows are read once, as they are in the file, and cut on the devices.

A read for each row of each device's columns takes more time than the bytes; and each device's link carries its share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

from pinning.errors import VendorError
from pinning.files.file_work import OpenFile, copy_parts
from pinning.files.slices import Piece
from pinning.memory import Allocation, alloc
from pinning.plugin import VendorQueue
from pinning.queues import Event, Queue

LONGEST_ROW = 64 << 10  # bytes; longer ones are read for each device
SMALLEST = 8 << 20  # bytes of a tensor
BLOCK = 32 << 20  # bytes that are read by one device, which has two such blocks: one is read while the other is cut


class Columns(NamedTuple):
    """The columns of one tensor that devices need.

    Attributes
    ----------
    begin, pitch, rows : int
        In the file: the offset of the first column of the first row, the bytes from one row to the next, their number.
    parts : list of (int, int, int, int)
        Device, address, bytes of a row, and their offset from `begin`.
    """

    begin: int
    pitch: int
    rows: int
    parts: list[tuple[int, int, int, int]]

    @property
    def devices(self) -> list[int]:
        return sorted({who for who, *_ in self.parts})


def take_columns(places: list[dict[Piece, int]], able: Callable[[set[int]], bool]) -> list[Columns]:
    """Remove from the devices' pieces the columns that are worth cutting, if the devices are able to; return them."""
    needed: dict[tuple[str, int, int], list[tuple[int, Piece]]] = defaultdict(list)
    for who, of_target in enumerate(places):
        for piece in of_target:
            if piece.rows > 1:
                needed[piece.tensor.name, piece.rows, piece.pitch].append((who, piece))
    taken = []
    for (_, rows, pitch), pieces in needed.items():
        if pitch * rows < SMALLEST or pitch > BLOCK:
            continue
        begin = min(piece.tensor.begin for _, piece in pieces)
        cuts = {piece: (piece.tensor.nbytes // rows, piece.tensor.begin - begin) for _, piece in pieces}
        widths = [width for width, _ in cuts.values()]
        if max(widths) < LONGEST_ROW and 2 * sum(widths) >= pitch and able({who for who, _ in pieces}):
            parts = [(who, places[who].pop(piece), *cuts[piece]) for who, piece in pieces]
            taken.append(Columns(begin, pitch, rows, parts))
    return taken


class Cutter:
    """Reads blocks of rows into the devices by turns, from where all get their columns."""

    def __init__(
        self,
        queues: Sequence[Queue],
        cutting: Callable[[int], Queue],
        reaches: Callable[[int, int], bool],
        scope: ExitStack,
    ) -> None:
        self._queues = queues
        self._cutting = cutting  # the queue that cuts on a device
        self._reaches = reaches
        self._scope = scope
        self._blocks: dict[int, list[tuple[Allocation, list[Event]]]] = {}  # by device; with the last cut, if any
        self._turn = 0

    def able(self, devices: set[int]) -> bool:
        """Whether these are several devices that reach each other, and each has room for its blocks."""
        if len(devices) < 2 or not all(self._reaches(*pair) for pair in permutations(devices, 2)):
            return False
        for who in devices - self._blocks.keys():
            blocks = self._blocks[who] = []
            with suppress(VendorError):
                for _ in range(2):
                    blocks.append((self._scope.enter_context(alloc(BLOCK, device=self._queues[who].device)), []))
        return all(len(self._blocks[who]) == 2 for who in devices)

    def read(self, file: OpenFile, columns: Columns, memories: Sequence[Any]) -> Iterator[Event]:
        """Submit the copies; yields the event of each as soon as it is submitted."""
        devices = columns.devices
        width = max(at + size for *_, size, at in columns.parts)  # of what is needed of a row
        file.look_for_cold(columns.begin, (columns.rows - 1) * columns.pitch + width)
        step = BLOCK // columns.pitch
        for first in range(0, columns.rows, step):
            owner = devices[self._turn % len(devices)]
            self._turn += 1
            rows = min(step, columns.rows - first)
            blocks = self._blocks[owner]
            blocks.reverse()
            block, cut = blocks[0]
            source = columns.begin + first * columns.pitch
            part = block.ptr, source, (rows - 1) * columns.pitch + width
            read = copy_parts(
                self._queues[owner], file, [part], in_device=True, wait_for=cut, keep=(block,), early=True
            )
            yield read
            ends = [
                (ptr + first * size, size, block.ptr + at, columns.pitch, size, rows)
                for _, ptr, size, at in columns.parts
            ]
            keep = block, *[memories[who] for who in devices]
            cut[:] = [self._cutting(owner).submit(partial(_cut, ends), (read,), keep)]
            yield cut[0]


def _cut(ends: Sequence[tuple[int, int, int, int, int, int]], queue: VendorQueue) -> None:
    for end in ends:
        queue.copy_2d(*end)

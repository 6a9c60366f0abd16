# SPDX-License-Identifier: Apache-2.0
"""Large copies over several links: a part goes directly, others through blocks on peers that have buses of their own.

All of a copy is in the vendor's queues when it is submitted, and what waits there waits for events that were recorded
before. So whatever else the devices have to do, it ends: docs/design/staging.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from pinning.copies.costs import costs
from pinning.copies.ends import End
from pinning.copies.plan import CopyPath, Plan, Reason, slowest
from pinning.copies.work import Copy, RangeCopy, count_moved, submit_native
from pinning.errors import PinningError, VendorError
from pinning.machine.topology import rate_of
from pinning.memory.pool import PeerPool
from pinning.plugin import MemoryDevice, VendorQueue
from pinning.queues import Event, Queue, pending
from pinning.queues.links import chosen_links, peers_of
from pinning.runtime import process

MIB = 1 << 20
LEAST_SHARE = 16 * MIB  # of one link: below, to come by a peer takes longer than it saves
BLOCKS = 4  # on a peer, in turns
LARGEST_BLOCK = 16 * MIB  # two of 8 MiB move as much, four of 4 MiB a tenth less
HEAD_START = 8 * MIB  # what the device's own link moves before the first piece of a peer has gone both its legs
ROUND = 128 * MIB  # of one link, where the caller waits: 2.5 ms, and two are under way
POOL_BYTES = BLOCKS * LARGEST_BLOCK

_REFUSALS = (VendorError, MemoryError, PinningError)  # of a peer, without which it goes on


class Way:
    """The way of a device's copies through one peer: a queue over the peer's bus, one over the link between the two.

    The device itself copies over the link: its memory may be such that only its own context reaches it, as torch's
    expandable segments are, while the blocks on the peer are always within reach.
    """

    def __init__(self, device: MemoryDevice, peer: MemoryDevice) -> None:
        self.peer = peer
        self.bus, self.link = Queue(peer, links="own"), Queue(device, links="own")
        self.bus.lend()
        self.link.lend()
        self.user: int | None = None  # the id of the queue whose copies go here

    def is_free_for(self, queue: Queue) -> bool:
        return self.user == id(queue) or self.is_idle()

    def is_idle(self) -> bool:
        return self.bus.poll() and self.link.poll()

    def synchronize(self) -> None:
        for each in (self.bus, self.link):
            with suppress(Exception):  # what failed here is done directly, or fails the copy
                each.synchronize()

    def close(self) -> None:
        self.bus.close()
        self.link.close()


_ways: dict[tuple[str, str], Way] = {}  # by the names of the device and the peer
_pools: dict[str, PeerPool] = {}  # by the name of the peer


class _Piece(NamedTuple):
    at: int
    size: int
    path: CopyPath


@dataclass
class _Divided:
    """A copy that is divided, in its queue."""

    to: End
    origin: End
    queue: Queue
    early: bool
    plan: Plan
    start: Event

    @property
    def waits(self) -> tuple[Event, ...]:
        return () if self.queue.order == "in_order" else (self.start,)

    def directly(self, at: int, size: int) -> Event:
        """A part of it in its own queue."""
        to, origin = _part(self.to, at, size), _part(self.origin, at, size)
        return submit_native(self.queue, _planned(to, origin, size, self.queue, self.early), self.waits)

    def pieces(self, begin: int, end: int, largest: int) -> Iterator[_Piece]:
        """Parts of [begin, end) that cross no border of a lock."""
        at = 0
        for step in self.plan.steps:
            first, last = max(at, begin), min(at + step.size, end)
            at += step.size
            while first < last:
                size = min(largest, last - first)
                yield _Piece(first, size, step.path)
                first += size

    def through(self, way: Way, begin: int, end: int, events: list[Event]) -> Iterator[None]:
        """Submit [begin, end) by way of a peer, one piece each time; directly what that refuses."""
        share = end - begin
        largest = -(-share // -(-share // LARGEST_BLOCK))
        todo, memory = begin, None
        try:
            pool = _pools.get(way.peer.name) or _pools.setdefault(way.peer.name, PeerPool(way.peer, POOL_BYTES))
            memory, ready = way.bus.alloc(BLOCKS * largest, pool=pool)
            if ready.error is not None:
                raise ready.error
            into, out = (way.bus, way.link) if self.plan.to_device else (way.link, way.bus)
            way.user = id(self.queue)
            emptied: deque[Event] = deque(maxlen=BLOCKS)
            for number, piece in enumerate(self.pieces(begin, end, largest)):
                block = memory.ptr + number % BLOCKS * largest
                waits = (emptied[0],) if len(emptied) == BLOCKS else ()
                filled = self._leg(into, way, block, piece, True, (self.start, ready) if number == 0 else waits)
                emptied.append(self._leg(out, way, block, piece, False, (filled,)))
                todo = piece.at + piece.size
                yield
            way.bus.free(memory, wait_for=(emptied[-1],))
            events.append(emptied[-1])
        except _REFUSALS:
            way.synchronize()  # so that nothing of it comes later than what is done anew
            _ways.pop((self.queue.device.name, way.peer.name), None)
            if memory is not None:
                with suppress(Exception):
                    way.bus.free(memory)
            if todo > begin and emptied:
                events.append(emptied[-1])
            if todo < end:
                events.append(self.directly(todo, end - todo))

    def _leg(self, queue: Queue, way: Way, block: int, piece: _Piece, fills: bool, waits: tuple[Event, ...]) -> Event:
        far = _part(self.origin if fills else self.to, piece.at, piece.size)
        if far.device is not None or piece.path is CopyPath.DIRECT:
            if far.device is None:
                count_moved(piece.path, piece.size)
            return queue.submit(
                _copies(block, far.ptr, piece.size) if fills else _copies(far.ptr, block, piece.size), waits
            )
        near = End(block, piece.size, way.peer, False, None)
        to, origin = (near, far) if fills else (far, near)
        return submit_native(queue, _planned(to, origin, piece.size, queue, self.early), waits)


def ways_of(queue: Queue) -> tuple[Way, ...]:
    """The peers by way of which a copy that is submitted now goes as well."""
    links = queue.links
    if links is None:
        asked = costs.links
        if not isinstance(asked, str):
            asked = [each for each in asked if _name(each) != queue.device.name]
        links = "own" if asked == "own" else chosen_links(asked, queue.device)
    if links == "own" or queue.is_capturing:
        return ()
    ways: list[Way] = []
    for peer in peers_of(queue.device) if isinstance(links, str) else links:
        key = queue.device.name, peer.name
        with suppress(*_REFUSALS):  # it is lost, or has no memory left: it does without
            way = _ways.get(key)
            if (way is None or way.is_free_for(queue)) and pending.is_idle(peer):
                ways.append(way or _ways.setdefault(key, Way(queue.device, peer)))
    return tuple(ways)


def copy_divided(
    to: End, origin: End, size: int, queue: Queue, wait_for: Iterable[Event], early: bool, ways: tuple[Way, ...]
) -> Copy | None:
    """A copy between host and device over several links; None where it is none of those that are divided."""
    ways = ways[: (size - HEAD_START) // LEAST_SHARE - 1]
    whole = _planned(to, origin, size, queue, early)  # which holds the locks of all that is locked
    plan = whole.plan()
    if not ways or not _is_divided(plan):
        return None
    keep = (whole, to.owner, origin.owner)
    divided = _Divided(to, origin, queue, early, plan, queue.submit(None, wait_for, keep))
    borders = _borders(size, queue.device, ways)
    events: list[Event] = []
    try:
        events.append(divided.directly(0, borders[0]))
        lines = [
            divided.through(way, begin, end, events)
            for way, begin, end in zip(ways, borders, borders[1:], strict=False)
        ]
        while lines:  # in turns, so that all links begin at once
            lines = [line for line in lines if next(line, lines) is None]
    except BaseException:
        with suppress(Exception):  # the first error says more
            for way in ways:
                way.synchronize()
            queue.synchronize()
        raise
    copy = queue.submit(None, tuple(events), keep, Copy)
    copy.path, copy.reason = plan.path, reason_over(plan, queue, ways)
    return copy


def copy_in_rounds(to: End, origin: End, size: int, queue: Queue, wait_for: Iterable[Event], early: bool) -> Copy:
    """A copy for which the caller waits, of which little is under way at a time: a peer that gets work is let go soon.

    What fails on a peer is done again directly.
    """
    rounds: deque[tuple[Copy, int, int]] = deque()
    paths, reasons = [], []
    at = 0

    def direct(at: int, size: int) -> Copy:
        part, rest = _part(to, at, size), _part(origin, at, size)
        work = _planned(part, rest, size, queue, early)
        copy = submit_native(queue, work, wait_for)
        plan = work.plan()
        copy.path, copy.reason = plan.path, plan.reason
        return copy

    def settle() -> None:
        copy, at, size = rounds.popleft()
        try:
            copy.wait()
        except _REFUSALS:
            direct(at, size).wait()

    while at < size:
        ways = ways_of(queue)
        part = min(size - at, (1 + len(ways)) * ROUND)
        ends = _part(to, at, part), _part(origin, at, part)
        copy = copy_divided(*ends, part, queue, wait_for, early, ways) or direct(at, part)
        paths.append(copy.path)
        reasons.append(copy.reason)
        rounds.append((copy, at, part))
        at += part
        if len(rounds) > 2:
            settle()
    while rounds:
        settle()
    copy = queue.submit(None, (), (), Copy)
    copy.path, copy.reason = slowest(paths), max(reasons, key=lambda reason: " over " in reason)
    return copy


def explained(plan: Plan, size: int, queue: Queue) -> Plan:
    """The same plan, which also says over how many links it would go now."""
    ways = ways_of(queue)[: (size - HEAD_START) // LEAST_SHARE - 1]
    return replace(plan, reason=reason_over(plan, queue, ways)) if ways and _is_divided(plan) else plan


def reason_over(plan: Plan, queue: Queue, ways: tuple[Way, ...]) -> str:
    names = ", ".join([queue.device.name, *(way.peer.name for way in ways)])
    return f"{plan.reason}; {plan.path} over {1 + len(ways)} links: {names}"


def trim() -> int:
    """Give the queues and the blocks on peers back that no copy uses now; returns the bytes of these."""
    for key, way in list(_ways.items()):
        if way.is_idle() and _ways.pop(key, None) is way:
            way.close()
    freed = 0
    for name, pool in list(_pools.items()):
        before = pool.reserved
        pool.trim_to(0)
        freed += before - pool.reserved
        if not pool.reserved:
            _pools.pop(name, None)
    return freed


def _is_divided(plan: Plan) -> bool:
    return plan.to_device is not None and plan.reason_code in (Reason.LOCKED, Reason.LARGE)


def _borders(size: int, device: MemoryDevice, ways: tuple[Way, ...]) -> list[int]:
    """Where the share of each link ends; they are as large as the buses are fast."""
    rates = [rate_of(getattr(each, "pci_address", None)) for each in (device, *(way.peer for way in ways))]
    known = [rate for rate in rates if rate is not None]
    parts = known if len(known) == len(rates) else [1] * len(rates)
    total, borders, reached = sum(parts), [], 0
    for part in parts:
        reached += part
        borders.append(size if reached == total else HEAD_START + (size - HEAD_START) * reached // total // MIB * MIB)
    return borders


def _planned(to: End, origin: End, size: int, queue: Queue, early: bool) -> RangeCopy:
    return RangeCopy(to, origin, size, queue.device, queue.waits_for_values, early)


def _part(end: End, at: int, size: int) -> End:
    return End(end.ptr + at, size, end.device, end.read_only, None)


def _copies(dst: int, src: int, size: int) -> Callable[[VendorQueue], None]:
    return lambda vendor_queue: vendor_queue.copy(dst, src, size)


def _name(device: object) -> object:
    return getattr(device, "name", device)


def _after_fork_in_child() -> None:
    pending.abandon((dict(_ways), dict(_pools)))
    _ways.clear()
    _pools.clear()


process.at_fork(process.Subsystem.COPIES, _after_fork_in_child)

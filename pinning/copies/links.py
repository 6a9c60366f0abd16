# SPDX-License-Identifier: Apache-2.0
"""Large copies over several links: a part goes directly, others through blocks on peers that have buses of their own.

A copy here is a `Divisible`: of host memory in this module, of parts of a file in `pinning.files`.

When a copy has been submitted, all of it is in the vendor's queues, and waits there only for events that were recorded
before. So it completes, whatever else the devices do: docs/design/staging.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from pinning.copies.bounce import copies_of
from pinning.copies.copy import no_room, plan_copy
from pinning.copies.costs import costs
from pinning.copies.ends import End
from pinning.copies.plan import CopyPath, Plan, Reason, Step, slowest
from pinning.copies.work import Copy, RangeCopy, count_by_peers, count_moved, submit_native
from pinning.errors import PinningError, VendorError
from pinning.machine.topology import rate_of
from pinning.memory.pool import QuietPool
from pinning.plugin import MemoryDevice
from pinning.queues import Event, Queue, pending
from pinning.queues.links import chosen_links, peers_of
from pinning.runtime.process import emptied_at_fork

MIB = 1 << 20
DIVIDED_FROM = 64 * MIB  # if the queue may use other devices' links
LEAST_SHARE = 16 * MIB  # of one link: for less, the way through a peer takes longer than it saves
BLOCKS = 4  # on a peer, used in turn
LARGEST_BLOCK = 16 * MIB  # two of 8 MiB move as much, four of 4 MiB a tenth less
HEAD_START = 8 * MIB  # what the device's own link moves until the first piece through a peer has arrived
ROUND = 128 * MIB  # of one link, if the caller waits: 2.5 ms, and two are in progress
POOL_BYTES = BLOCKS * LARGEST_BLOCK

_REFUSALS = (VendorError, MemoryError, PinningError)  # of a peer; the copy goes on without it


class Way:
    """The way of a device's copies through one peer: a queue over the peer's bus, one over the link between the two.

    The device itself copies over the link: some of its memory, such as torch's expandable segments, can be reached only
    from its own context, while it can always reach the blocks on the peer.
    """

    def __init__(self, device: MemoryDevice, peer: MemoryDevice) -> None:
        self.peer = peer
        self.bus: Queue = Queue(peer, links="own")
        self.link: Queue = Queue(device, links="own")
        self.bus._lend()
        self.link._lend()
        self.rates = tuple(rate_of(getattr(each, "pci_address", None)) for each in (device, peer))  # of their buses
        self.user: int | None = None  # the id of the queue whose copies use this way

    def is_free_for(self, queue: Queue) -> bool:
        return self.user == id(queue) or self.is_idle()

    def is_idle(self) -> bool:
        return self.bus.poll() and self.link.poll()

    def synchronize(self) -> None:
        for each in (self.bus, self.link):
            with suppress(Exception):  # what failed here is copied directly, or makes the copy fail
                each.synchronize()

    def close(self) -> None:
        for each in (self.bus, self.link):
            with suppress(Exception):  # the peer is lost, and the queue with it
                each.close()


_ways: dict[tuple[str, str], Way] = emptied_at_fork({})  # by the names of the device and the peer
_pools: dict[str, QuietPool] = emptied_at_fork({})  # by the name of the peer


_C = TypeVar("_C", bound=Copy, covariant=True)


class Divisible(Protocol[_C]):
    """A copy between a device and the host, or a file, that can be submitted in parts to queues of several devices."""

    path: CopyPath
    reason: str
    to_device: bool
    is_divided: bool  # whether it is, if there are peers
    steps: Sequence[Step]  # of all of it, in order; no piece has bytes of two steps
    keep: tuple[object, ...]

    def submit(self, queue: Queue, steps: Sequence[Step], waits: Iterable[Event]) -> Event:
        """Submit parts; the device's end of each is memory of the queue's device."""

    def submit_all(self, queue: Queue, waits: Iterable[Event]) -> _C:
        """Submit all of it as one undivided copy, with its path and its reason."""

    def make_event(self) -> _C:
        """Make the event of the whole copy, to be submitted."""


class Memory:
    """A copy of memory as it is planned now: the `Divisible` of all but files."""

    def __init__(self, to: End, origin: End, size: int, queue: Queue, early: bool, in_turn: bool) -> None:
        self._device, self._early, self._in_turn = queue.device, early, in_turn
        self._work = plan_copy(to, origin, size, queue, early, in_turn)  # holds the locks of all locked memory
        plan = self._work.plan()
        self.path: CopyPath = plan.path
        self.reason: str = plan.reason
        self.steps: Sequence[Step] = plan.steps
        self.to_device: bool = plan.to_device is True
        self.is_divided: bool = _is_divided(plan)
        self.keep: tuple[object, ...] = (self._work, to.owner, origin.owner)

    def submit(self, queue: Queue, steps: Sequence[Step], waits: Iterable[Event]) -> Event:
        dst, src, _, path = steps[0]
        size = sum(step.size for step in steps)
        if (
            queue.device is not self._device and path is CopyPath.DIRECT
        ):  # the peer's map does not know that it is locked
            count_moved(path, size)
            return queue.submit(copies_of(dst, src, size), waits)
        to = End(dst, size, queue.device if self.to_device else None, False, None)
        origin = End(src, size, None if self.to_device else queue.device, False, None)
        return self._submit(queue, plan_copy(to, origin, size, queue, self._early, self._in_turn), waits)

    def submit_all(self, queue: Queue, waits: Iterable[Event]) -> Copy:
        copy = self._submit(queue, self._work, waits)
        copy.path, copy.reason = self.path, self.reason
        return copy

    def _submit(self, queue: Queue, work: RangeCopy, waits: Iterable[Event]) -> Copy:
        copy = submit_native(queue, work, waits)
        if work.reason_code is Reason.NO_ROOM and self.path is not work.path:
            self.path, self.reason = work.path, f"{self.reason}, but {no_room(queue.device)}"
        return copy

    def make_event(self) -> Copy:
        return Copy.__new__(Copy)


@dataclass
class _Divided:
    """A divided copy and its queue."""

    whole: Divisible[Copy]
    queue: Queue
    start: Event

    def directly(self, begin: int, end: int) -> Event:
        """Submit a part to the queue of the copy."""
        waits = () if self.queue.order == "in_order" else (self.start,)
        return self.whole.submit(self.queue, list(steps_within(self.whole.steps, begin, end)), waits)

    def through(self, way: Way, begin: int, end: int, events: list[Event]) -> Iterator[None]:
        """Submit [begin, end) through a peer, one piece each time; directly, what the peer refuses."""
        share = end - begin
        largest = -(-share // -(-share // LARGEST_BLOCK))
        done, memory = begin, None
        emptied: list[Event] = []
        try:
            made = _pools.get(way.peer.name) or QuietPool(way.peer, maximum_size=POOL_BYTES)
            pool = _pools.setdefault(way.peer.name, made)
            memory, ready = way.bus.alloc(BLOCKS * largest, pool=pool)
            if ready.error is not None:
                # Another queue's copy took the block meanwhile. The allocation keeps the error: raising it here would
                # make a cycle with these frames, which would keep the copy's locks until the garbage collector runs.
                events.append(self.directly(begin, end))
                return
            way.user = id(self.queue)
            for number, piece in enumerate(steps_within(self.whole.steps, begin, end, largest)):
                block = memory.ptr + number % BLOCKS * largest
                waits = (self.start, ready) if number == 0 else (emptied[-BLOCKS],) if number >= BLOCKS else ()
                emptied.append(self._by_block(way, block, piece, waits))
                count_by_peers(piece.size)
                done += piece.size
                yield
            way.bus.free(memory, wait_for=(emptied[-1],))
            events += emptied  # of all pieces: the last one does not fail because of another
        except _REFUSALS:
            way.synchronize()  # so that nothing of it arrives after what is copied again
            _ways.pop((self.queue.device.name, way.peer.name), None)
            if memory is not None:
                with suppress(Exception):
                    way.bus.free(memory)
            try:
                for each in emptied:
                    each.wait()
            except _REFUSALS:  # it is not known which of them have arrived
                done = begin
            if done < end:
                events.append(self.directly(done, end))

    def _by_block(self, way: Way, block: int, piece: Step, waits: tuple[Event, ...]) -> Event:
        """Submit both copies of a piece, over bus and link; returns the event of the second."""
        if self.whole.to_device:
            filled = self.whole.submit(way.bus, [piece._replace(dst=block)], waits)
            return way.link.submit(copies_of(piece.dst, block, piece.size), (filled,))
        filled = way.link.submit(copies_of(block, piece.src, piece.size), waits)
        return self.whole.submit(way.bus, [piece._replace(src=block)], (filled,))


def steps_within(steps: Iterable[Step], begin: int, end: int, largest: int | None = None) -> Iterator[Step]:
    """The parts of steps that are bytes [begin, end) of the copy, each of at most `largest` bytes."""
    at = 0
    for step in steps:
        first, last = max(at, begin) - at, min(at + step.size, end) - at
        at += step.size
        while first < last:
            size = last - first if largest is None else min(largest, last - first)
            yield Step(step.dst + first, step.src + first, size, step.path)
            first += size


def ways_of(queue: Queue) -> tuple[Way, ...]:
    """The ways through peers that a copy submitted now uses as well."""
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
        with suppress(*_REFUSALS):  # the peer is lost, or has no memory left: copies do without it
            way = _ways.get(key)
            if (way is None or way.is_free_for(queue)) and pending.is_idle(peer):
                ways.append(way or _ways.setdefault(key, Way(queue.device, peer)))
    return tuple(ways)


def divided(
    whole: Divisible[_C], size: int, queue: Queue, wait_for: Iterable[Event], ways: tuple[Way, ...]
) -> _C | None:
    """Submit a copy over several links; None if it uses only one."""
    ways = _with_share(ways, size)
    if not ways or not whole.is_divided:
        return None
    of_queue = _Divided(whole, queue, queue.submit(None, wait_for, whole.keep))
    borders = _borders(size, ways)
    events: list[Event] = []
    try:
        events.append(of_queue.directly(0, borders[0]))
        lines = [
            of_queue.through(way, begin, end, events)
            for way, begin, end in zip(ways, borders, borders[1:], strict=False)
        ]
        while lines:  # in turn, so that all links begin at once
            lines = [line for line in lines if next(line, lines) is None]
        copy = queue.submit(None, tuple(events), whole.keep, whole.make_event)  # a peer may be lost by now
    except BaseException:
        with suppress(Exception):  # the first error says more
            for way in ways:
                way.synchronize()
            queue.synchronize()
        raise
    copy.path, copy.reason = whole.path, reason_over(whole, queue, ways)
    return copy


def copy_divided(
    to: End,
    origin: End,
    size: int,
    queue: Queue,
    wait_for: Iterable[Event],
    early: bool,
    in_turn: bool,
    ways: tuple[Way, ...],
) -> Copy | None:
    """Submit a copy of memory over several links; None if it uses only one."""
    return divided(Memory(to, origin, size, queue, early, in_turn), size, queue, wait_for, ways)


class Rounds:
    """Copies for which the caller waits, with little in progress at a time, so that a peer that gets work is soon free.

    What fails on a peer is copied again directly.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._under_way: deque[tuple[Copy, Callable[[], Divisible[Copy]]]] = deque()
        self._paths: list[CopyPath] = []
        self._reasons: list[str] = []

    def add(self, part: Callable[[int, int], Divisible[Copy]], size: int, wait_for: Iterable[Event] = ()) -> None:
        """Add a copy; `part` makes the copy of some of its bytes, given the first one and their number."""
        at = 0
        while at < size:
            ways = ways_of(self._queue)
            count = min(size - at, (1 + len(ways)) * ROUND)
            again = partial(part, at, count)
            whole = again()
            try:
                copy = divided(whole, count, self._queue, wait_for, ways) or whole.submit_all(self._queue, wait_for)
            except _REFUSALS:
                whole = again()
                copy = whole.submit_all(self._queue, wait_for)
            self._paths.append(copy.path)
            self._reasons.append(copy.reason)
            self._under_way.append((copy, again))
            at += count
            while len(self._under_way) > 2:
                self._settle()

    def finish(self) -> None:
        while self._under_way:
            self._settle()

    def under_way(self) -> list[Copy]:
        return [copy for copy, _ in self._under_way]

    def describe(self, copy: Copy) -> None:
        """Set the path and the reason of a copy to those of all rounds."""
        copy.path, copy.reason = slowest(self._paths), max(self._reasons, key=lambda reason: " over " in reason)

    def _settle(self) -> None:
        copy, again = self._under_way[0]
        try:
            copy.wait()
        except _REFUSALS:
            again().submit_all(self._queue, ()).wait()
        self._under_way.popleft()


def copy_in_rounds(
    to: End, origin: End, size: int, queue: Queue, wait_for: Iterable[Event], early: bool, in_turn: bool
) -> Copy:
    """Copy memory in rounds, and wait for them. After Ctrl-C, rounds under way go on and keep the memory."""

    def part(at: int, count: int) -> Memory:
        return Memory(_part(to, at, count), _part(origin, at, count), count, queue, early, in_turn)

    rounds = Rounds(queue)
    try:
        rounds.add(part, size, wait_for)
        rounds.finish()
    except Exception:  # nothing stays submitted
        with suppress(Exception):  # the first error says more
            queue.synchronize()
        raise
    copy = queue.submit(None, (), (), Copy)
    rounds.describe(copy)
    return copy


def explained(plan: Plan, size: int, queue: Queue) -> Plan:
    """The same plan, with a reason that also tells how many links it would use now."""
    ways = _with_share(ways_of(queue), size) if size >= DIVIDED_FROM else ()
    return replace(plan, reason=reason_over(plan, queue, ways)) if ways and _is_divided(plan) else plan


def reason_over(plan: Plan | Divisible[Copy], queue: Queue, ways: tuple[Way, ...]) -> str:
    names = ", ".join([queue.device.name, *(way.peer.name for way in ways)])
    return f"{plan.reason}; {plan.path} over {1 + len(ways)} links: {names}"


def trim() -> int:
    """Give back queues and blocks on peers that no copy uses now; returns the bytes of the blocks."""
    for key, way in list(_ways.items()):
        if way.is_idle() and _ways.pop(key, None) is way:
            way.close()
    freed = 0
    for name, pool in list(_pools.items()):
        before = pool.reserved
        with suppress(*_REFUSALS):
            pool.trim_to(0)
        freed += before - pool.reserved
        if not pool.reserved:
            _pools.pop(name, None)
    return freed


def _is_divided(plan: Plan) -> bool:
    return plan.to_device is not None and plan.reason_code in (Reason.LOCKED, Reason.LARGE)


def _with_share(ways: tuple[Way, ...], size: int) -> tuple[Way, ...]:
    """The ways for which `size` bytes suffice: a link moves LEAST_SHARE or more, or less if its bus is slower."""
    shared = size - HEAD_START
    ways = ways[: max(0, shared // LEAST_SHARE - 1)]
    rates = _rates(ways)
    return tuple(way for way, rate in zip(ways, rates[1:], strict=True) if shared * rate >= MIB * sum(rates))


def _rates(ways: tuple[Way, ...]) -> list[int]:
    """The rates of the device's bus and of the peers', by which they share a copy: as if equal where one is unknown."""
    rates = [way.rates[0] for way in ways[:1]] + [way.rates[1] for way in ways]
    known = [rate for rate in rates if rate is not None]
    return known if len(known) == len(rates) else [1] * len(rates)


def _borders(size: int, ways: tuple[Way, ...]) -> list[int]:
    """Where the share of each link ends."""
    parts = _rates(ways)
    total, borders, reached = sum(parts), [], 0
    for part in parts:
        reached += part
        borders.append(size if reached == total else HEAD_START + (size - HEAD_START) * reached // total // MIB * MIB)
    return borders


def _part(end: End, at: int, size: int) -> End:
    return End(end.ptr + at, size, end.device, end.read_only, end.owner)


def _name(device: object) -> object:
    return getattr(device, "name", device)

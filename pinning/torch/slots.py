# SPDX-License-Identifier: Apache-2.0
"""Blocks of a locked arena: one process hands them out, others fill them, and they return after their last use."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import multiprocessing
import os
import struct
import sys
import termios
import threading
from contextlib import suppress
from multiprocessing import reduction
from queue import SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import numpy
import torch
from numpy.typing import NDArray

from pinning.arena import Arena
from pinning.errors import InvalidRangeError, PinningError
from pinning.locking.devices import device, is_host
from pinning.map.adapters import synchronize_in_background
from pinning.plugin import Device
from pinning.runtime.process import defer

Ticket = tuple[int, int]  # a slot, and how often it was given out before
_TICKET = struct.Struct("QQ")  # read and written by the kernel as a whole
_MOST = 256  # slots: their tickets fit into the smallest pipe, so writing one never waits

_living: WeakValueDictionary[tuple[int, int], Slots] = WeakValueDictionary()
_serials = itertools.count()
_END = -1


class Slots:
    """`count` blocks of `nbytes` bytes, locked in the process that makes it, its owner.

    A process that gets a ticket from the pipe has the slot. Unless it is the owner, it notes that in the book, and
    locks a byte of its own in the book's file as long as it lives: `miss` recovers the slots of dead processes.
    """

    _owner = 0
    _arena: Arena | None = None
    _dropped: SimpleQueue[int | None] | None = None

    def __init__(self, nbytes: int, count: int, device: Device | str | None) -> None:
        if not 1 <= count <= _MOST:
            raise InvalidRangeError(f"batches is {count}; it must lie between 1 and {_MOST}")
        self._owner = os.getpid()
        self.key: tuple[int, int] = self._owner, next(_serials)
        self.nbytes: int = nbytes
        self.missed: int = 0
        self._step = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._arena = Arena(self._step * count, device, unit=self._step, shared=True)
        try:
            self._arena.wait()
        except BaseException:
            self._arena.close()
            raise
        self._memory = self._arena.asarray()
        self._book = _File(os.memfd_create("pinning-slots"))
        os.ftruncate(self._book.number, 8 * count)
        self._takers: NDArray[numpy.int64] = numpy.frombuffer(mmap.mmap(self._book.number, 8 * count), "i8")
        self._lives = 0  # the process whose byte of the book is locked
        tickets, returns = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._tickets, self._returns = _File(tickets), _File(returns)
        self._gate = _Gate(self._takers, self._returns)
        self._changing = threading.Lock()  # excludes `miss` during `receive`
        if torch.cuda.is_available() and not all(map(is_host, self._arena.devices)):
            torch.cuda.init()  # before that, torch reports nothing as pinned
            self._dropped = SimpleQueue()
            arguments = self._dropped, self._gate
            threading.Thread(target=_settle, args=arguments, name="pinning slots", daemon=True).start()
        for slot in range(count):
            self._gate.give(slot)
        _living[self.key] = self

    # ---- in any process ----

    @property
    def owned(self) -> bool:
        return os.getpid() == self._owner

    @property
    def can_send(self) -> bool:
        """Whether the owner has started this process."""
        parent = multiprocessing.parent_process()
        return parent is not None and parent.pid == self._owner

    def take(self) -> Ticket | None:
        """Take a slot; None if none is left. Never waits."""
        if not self.owned and self._lives != os.getpid():
            fcntl.lockf(self._book.number, fcntl.LOCK_EX, 1, os.getpid())
            self._lives = os.getpid()
        try:
            slot, serial = _TICKET.unpack(os.read(self._tickets.number, _TICKET.size))
        except BlockingIOError:
            return None
        if not self.owned:
            self._takers[slot] = os.getpid()
        return slot, serial

    def put_back(self, ticket: Ticket) -> None:
        """Give back a slot whose contents no other process has seen."""
        self._takers[ticket[0]] = 0
        os.write(self._returns.number, _TICKET.pack(*ticket))

    def bytes_of(self, ticket: Ticket) -> NDArray[numpy.uint8]:
        start = ticket[0] * self._step
        return self._memory[start : start + self.nbytes]

    def __getstate__(self) -> dict[str, Any]:
        """For a process that the owner starts; it cannot be passed in any other way."""
        multiprocessing.context.assert_spawning(self)
        assert self._arena is not None
        files = {name: reduction.DupFd(getattr(self, name).number) for name in ("_book", "_tickets", "_returns")}
        plain = {"nbytes": self.nbytes, "_step": self._step, "_owner": self._owner, "key": self.key}
        return {**plain, **files, "_arena": reduction.DupFd(self._arena.fileno()), "_takers": self._takers.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        count = state["_takers"]
        for name in ("_book", "_tickets", "_returns"):
            state[name] = _File(state[name].detach())
        arena = state["_arena"].detach()
        self.__dict__.update(state)
        self._memory = numpy.frombuffer(mmap.mmap(arena, self._step * count), "u1")
        os.close(arena)
        self._takers = numpy.frombuffer(mmap.mmap(self._book.number, 8 * count), "i8")
        self._lives = 0

    # ---- in the owner ----

    def receive(self, ticket: Ticket) -> Block:
        """The block of a slot that another process has written.

        Raises
        ------
        PinningError
            That process has died, and its slots were recovered.
        """
        slot, serial = ticket
        with self._changing:
            if self._gate.given[slot] != serial + 1:
                raise PinningError(f"the worker that made this batch, process {self._takers[slot]}, has died")
            block = Block(self, ticket)
            self._takers[slot] = 0
        return block

    def miss(self) -> None:
        """Count a batch that found no room. Recovers the slots of dead processes and, soon, those that were dropped."""
        self.missed += 1
        with self._changing:
            for slot in numpy.flatnonzero(self._takers).tolist():
                if not self._is_alive(int(self._takers[slot])):
                    self._gate.give(slot)
        if self._dropped is not None:
            self._dropped.put(None)

    def _is_alive(self, process: int) -> bool:
        try:
            fcntl.lockf(self._book.number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, process)
        except OSError:
            return True
        fcntl.lockf(self._book.number, fcntl.LOCK_UN, 1, process)
        return False

    def drop(self, slot: int) -> None:
        """Recover a slot whose tensors are gone. Runs in destructors: nothing here waits."""
        if self._dropped is not None:
            self._dropped.put(slot)
        else:
            self._gate.give(slot)

    def __del__(self) -> None:
        if sys.is_finalizing() or not self.owned:
            return
        if self._dropped is not None:
            self._dropped.put(_END)
        self.__dict__.pop("_memory", None)
        if self._arena is not None:
            defer(self._arena._close)


class _File:
    """A descriptor, closed with its last owner."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.number)


class _Gate:
    """Hands out slots, each time with the next number, by which a batch of a dead process is recognized."""

    def __init__(self, takers: NDArray[numpy.int64], returns: _File) -> None:
        self._takers, self._returns = takers, returns
        self.given = [0] * takers.size  # how often each slot was handed out

    @property
    def free(self) -> int:
        """The number of slots that wait to be taken."""
        readable = fcntl.ioctl(self._returns.number, termios.FIONREAD, bytes(4))
        return int.from_bytes(readable, sys.byteorder) // _TICKET.size

    def give(self, slot: int) -> None:
        self._takers[slot] = 0
        self.given[slot] += 1
        with suppress(BrokenPipeError):  # no process reads any more: the slots are gone
            os.write(self._returns.number, _TICKET.pack(slot, self.given[slot] - 1))


class Block:
    """A slot that contains a batch; dropped with the last array of its bytes."""

    def __init__(self, slots: Slots, ticket: Ticket) -> None:
        memory = slots.bytes_of(ticket)
        self.__array_interface__: dict[str, Any] = {**memory.__array_interface__, "shape": memory.shape}
        self._slot = ticket[0]
        self._slots = slots

    def __del__(self) -> None:
        slots = self.__dict__.get("_slots")
        if slots is not None and slots.owned and not sys.is_finalizing():
            slots.drop(self._slot)


def slots_of(key: tuple[int, int]) -> Slots | None:
    """The slots of this process that have a key."""
    slots = _living.get(key)
    return slots if slots is not None and slots.owned else None


def _settle(dropped: SimpleQueue[int | None], gate: _Gate) -> None:
    """Hand dropped slots out again after the GPUs' pending work: once as many wait as are free, or after a `miss`."""
    waiting: list[int] = []
    while (slot := dropped.get()) != _END:
        if slot is not None:
            waiting.append(slot)
        if waiting and (slot is None or len(waiting) >= gate.free):
            with suppress(RuntimeError, PinningError):  # the slots of a GPU that has failed are not reused
                _wait_for_gpus()
                for each in waiting:
                    gate.give(each)
            waiting.clear()


def _wait_for_gpus() -> None:
    for index in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(index):
            synchronize_in_background(device(f"cuda:{index}"))  # unlike torch's synchronize, ends no capture

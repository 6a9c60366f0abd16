# SPDX-License-Identifier: Apache-2.0
"""`memory_connection`, and the accesses and copies that it promises."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

import pinning
from fake_device import FakeDevice
from fake_memory import FakeMemoryDevice
from pinning import Context, MemoryConnection, PinningError, Queue, memory_connection
from pinning.plugin import Device

NONE, MIGRATABLE, UNIFIED = MemoryConnection.NONE, MemoryConnection.MIGRATABLE, MemoryConnection.UNIFIED
SIZE = 100_000


@pytest.fixture
def pair() -> Iterator[tuple[FakeMemoryDevice, FakeMemoryDevice]]:
    """Two devices whose work is not held."""
    pair = FakeMemoryDevice("fake:0", held=False), FakeMemoryDevice("fake:1", held=False)
    yield pair
    for fake in pair:
        pinning.queues.default_queue(fake).close()
        fake.check()


def used_there(memory: pinning.Allocation, user: Device) -> bytes:
    """What a queue of `user` reads at the memory's own address."""
    with pinning.alloc(memory.size, device=user) as own, Queue(user) as queue:
        queue.submit(lambda vendor: vendor.copy(own.ptr, memory.ptr, memory.size), (), (own, memory)).wait()
        return ctypes.string_at(own.ptr, own.size)


@pytest.mark.parametrize("connection", MemoryConnection, ids=lambda each: each.value)
@pytest.mark.parametrize("shared", [False, True], ids=["a context each", "one context"])
def test_what_is_promised_holds(
    pair: tuple[FakeMemoryDevice, FakeMemoryDevice], connection: MemoryConnection, shared: bool
) -> None:
    source, user = pair
    source.connections[user] = connection
    contexts = [Context(pair)] * 2 if shared else [Context(source), Context(user)]
    assert memory_connection((source, contexts[0]), (user, contexts[1])) is connection
    data = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    with contexts[0].alloc(SIZE, device=source) as memory, contexts[1].alloc(SIZE, device=user) as there:
        pinning.copy(memory, data)
        if connection is UNIFIED:
            assert used_there(memory, user) == data.tobytes()
        for fake in pair:
            fake.vendor_calls.clear()
        copied = pinning.copy(there, memory)
        assert ctypes.string_at(there.ptr, SIZE) == data.tobytes()
        through_host = [call for fake in pair for call in fake.vendor_calls].count("allocate")
        assert copied.path == ("staged" if connection is NONE else "direct")
        assert through_host == (1 if connection is NONE else 0)
    for context in contexts:
        context.close()


def test_each_way_has_its_own(pair: tuple[FakeMemoryDevice, FakeMemoryDevice]) -> None:
    one, other = pair
    one.connections[other] = UNIFIED
    with Context(pair) as context:
        assert memory_connection((one, context), (other, context)) is UNIFIED
        assert memory_connection((other, context), (one, context)) is NONE
        assert memory_connection((one, context), (one, context)) is UNIFIED
        assert memory_connection(("fake:0", context), ("fake:1", context)) is UNIFIED


def test_the_host_can_use_its_own_memory() -> None:
    with Context("host") as context, Context("host") as other:
        assert memory_connection(("host", context), ("host:0", other)) is UNIFIED
        with context.alloc(SIZE) as memory, Queue("host") as queue:
            pinning.fill(memory, 7, queue=queue)
            assert ctypes.string_at(memory.ptr, SIZE) == b"\7" * SIZE
            assert used_there(memory, pinning.device("host")) == b"\7" * SIZE


def test_the_host_is_in_every_context(pair: tuple[FakeMemoryDevice, FakeMemoryDevice]) -> None:
    fake = pair[0]
    host = pinning.device("host")
    with Context(fake) as context:
        for name in ("host", host):
            assert memory_connection((fake, context), (name, context)) is NONE
            assert memory_connection((name, context), (fake, context)) is NONE
        fake.connections[host] = UNIFIED
        assert memory_connection((fake, context), (host, context)) is UNIFIED
        with context.alloc(SIZE) as memory:
            pinning.fill(memory, 5)
            assert ctypes.string_at(memory.ptr, SIZE) == b"\5" * SIZE


@pytest.mark.parametrize("place", [("host",), ("host", "host"), ("host", None, None)])
def test_a_place_that_is_none(place: tuple[object, ...]) -> None:
    with pytest.raises(TypeError, match="must be a device, or a pair"):
        memory_connection(place, "host")  # type: ignore[arg-type]


def test_a_device_that_is_not_in_its_context(pair: tuple[FakeMemoryDevice, FakeMemoryDevice]) -> None:
    one, other = pair
    with Context(one) as context:
        for places in (((other, context), (one, context)), ((one, context), (other, context))):
            with pytest.raises(PinningError, match="fake:1 is not in <Context of fake:0>"):
                memory_connection(*places)
        with pytest.raises(pinning.PluginUnavailableError):
            memory_connection((one, context), ("host:7", context))
        with pytest.raises(PinningError, match="locks:0 is not in"):
            memory_connection((FakeDevice("locks:0"), context), (one, context))


def test_a_vendor_that_cannot_say(pair: tuple[FakeMemoryDevice, FakeMemoryDevice]) -> None:
    fake = pair[0]
    with Context(fake) as context:
        fake.fail_call()
        with pytest.raises(pinning.VendorError, match="FAKE_FAILURE"):
            memory_connection((fake, context), (fake, context))


def test_a_device_alone_stands_for_its_default_context() -> None:
    assert memory_connection("host", "host") is MemoryConnection.UNIFIED
    assert memory_connection(pinning.device("host"), ("host", Context("host"))) is MemoryConnection.UNIFIED

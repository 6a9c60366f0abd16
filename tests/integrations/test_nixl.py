# SPDX-License-Identifier: Apache-2.0
"""pinning.nixl registers what is locked with an agent: with a fake agent, and with NIXL's if that is installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import pinning
from fake_device import WAIT, Background, FakeDevice
from pinning import InvalidRangeError, NotLockedError, PinningError, RegistrarError
from pinning.nixl import AgentMemory

MANY = 1265


class Agent:
    """Has the methods of a nixl_agent that are called, and records what is registered."""

    name = "ours"

    def __init__(self) -> None:
        self.known: list[tuple[int, ...]] = []
        self.registrations = 0
        self.refuses = False

    def register_memory(self, rows: Any, mem_type: str, backends: list[str]) -> Any:
        assert (mem_type, backends) == ("DRAM", [])
        if self.refuses:
            raise RuntimeError("NIXL_ERR_BACKEND")
        self.registrations += len(rows)
        self.known += [tuple(map(int, row)) for row in rows]
        return rows

    def deregister_memory(self, rows: Any, backends: list[str]) -> None:
        assert backends == []
        for row in rows:
            self.known.remove(tuple(map(int, row)))

    def get_xfer_descs(self, rows: Any, mem_type: str) -> Any:
        assert (rows.shape[1:], rows.dtype, mem_type) == ((3,), numpy.uint64, "DRAM")
        return rows


@pytest.fixture
def memory(device: FakeDevice) -> Iterator[AgentMemory]:
    with AgentMemory(Agent(), device) as memory:
        yield memory
    assert memory.agent.known == []


def test_views_of_one_allocation_are_registered_once(memory: AgentMemory, device: FakeDevice) -> None:
    second = AgentMemory(Agent(), device)
    arrays = [numpy.zeros((211, 4096), "u1") for _ in range(6)]
    views = [array[at][1:4000:3] if at % 7 == 0 else array[at] for array in arrays for at in range(211)][:MANY]
    with memory.lock(views) as locked:
        assert locked.allocations == len(device.locked) == 6
        assert sorted(memory.agent.known) == sorted((a.ctypes.data, a.nbytes, 0) for a in arrays)
        assert memory.registered.tolist() == sorted([a.ctypes.data, a.nbytes, 0] for a in arrays)
        assert (memory.agent.registrations, second.agent.registrations) == (6, 6)
        assert locked.descs()[:, 0].tolist() == [view.ctypes.data for view in views]
        assert locked.rows.shape == (MANY, 3)
        assert locked.rows[1].tolist() == [views[1].ctypes.data, 4096, 0]
    assert memory.agent.known == second.agent.known == []
    locked.unlock()
    second.close()


def test_buffers_that_overlap_and_say_nothing_of_their_allocation(memory: AgentMemory, device: FakeDevice) -> None:
    array = numpy.zeros(1000, "u1")
    at = array.ctypes.data
    with memory.lock([(at, 100), (at + 50, 100), (at + 60, 10), (at + 500, 100), array.data[700:800]]) as locked:
        assert device.locked == {at: 150, at + 500: 100, at + 700: 100}
        assert locked.rows[:, 1].tolist() == [100, 100, 10, 100, 100]


def test_views_of_a_map_and_of_bytes(memory: AgentMemory, device: FakeDevice, tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    mapped = numpy.memmap(tmp_path / "file", "u1", "r+")
    data = numpy.frombuffer(bytes(500), "u1")
    with memory.lock([mapped[4096:5000], mapped[:10], data[100:200]]) as locked:
        assert locked.allocations == 2
        assert sorted(device.locked.values()) == [500, 8192]


def test_tensors_of_one_storage(memory: AgentMemory, device: FakeDevice) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    whole = torch.zeros(10, 1000)
    with memory.lock([whole[3], whole.T[5], whole[:, ::7]]) as locked:
        assert device.locked == {whole.data_ptr(): 40_000}
        assert int(locked.rows[0, 0]) == whole[3].data_ptr()


def test_blocks_by_address(memory: AgentMemory, device: FakeDevice) -> None:
    caches = [numpy.zeros((100, 64), "u1") for _ in range(3)]
    blocks = numpy.concatenate([cache.ctypes.data + 64 * numpy.arange(100, dtype="u8") for cache in caches])
    with memory.lock(caches):
        assert memory.rows(blocks, 64).tolist() == [[int(block), 64, 0] for block in blocks]
        assert memory.rows([], 64).shape == (0, 3)
        for wrong, size in ((blocks + 1, 64), (blocks, 65), (blocks, 1 << 63), (blocks - 64, 64)):
            with pytest.raises(NotLockedError, match=r"range \d+, \[0x"):
                memory.rows(wrong, size)
        with pytest.raises(InvalidRangeError, match="0 bytes"):
            memory.rows(blocks, 0)
        with pytest.raises(InvalidRangeError, match="300 addresses have 2 sizes"):
            memory.rows(blocks, [64, 64])
    with pytest.raises(NotLockedError):
        memory.rows(blocks, 64)


def test_pieces_of_a_registration(device: FakeDevice) -> None:
    """Some network cards are slower if one registration is large."""
    agent = Agent()
    with AgentMemory(agent, device, piece=4096) as memory:
        whole = bytearray(10_000)
        with memory.lock([whole]) as locked:
            base = int(locked.rows[0, 0])
            pieces = [[base, 4096, 0], [base + 4096, 4096, 0], [base + 8192, 1808, 0]]
            assert sorted(agent.known) == [tuple(each) for each in pieces]
            assert locked.rows.tolist() == memory.registered.tolist() == pieces
            assert memory.rows([base + 4000, base + 4096], [200, 4096]).tolist() == [
                [base + 4000, 96, 0],
                [base + 4096, 104, 0],
                pieces[1],
            ]
    with pytest.raises(InvalidRangeError, match="piece is 0"):
        AgentMemory(agent, device, piece=0)


def test_an_agent_that_refuses(memory: AgentMemory, device: FakeDevice) -> None:
    other = AgentMemory(Agent(), device)
    other.agent.refuses = True
    with pytest.raises(RegistrarError, match=r"NIXL agent ours.*NIXL_ERR_BACKEND"):
        memory.lock([numpy.zeros(1000, "u1"), numpy.zeros(1000, "u1")])
    assert (device.locked, memory.agent.known) == ({}, [])
    other.close()


def test_what_others_have_pinned_or_is_being_locked_is_not_registered(memory: AgentMemory, device: FakeDevice) -> None:
    array = numpy.zeros(3 * 4096, "u1")
    start = array.ctypes.data
    device.foreign[start] = array.nbytes
    with pytest.raises(NotLockedError, match="others have pinned"):
        memory.lock([array])
    assert len(memory.map) == 0
    device.foreign.clear()
    with device.stopping("data_lock", start + 4096) as gate:
        locking = Background(lambda: pinning.lock(array, device=device, piece=4096))
        assert gate.reached.wait(WAIT)
        assert memory.registered.tolist() == memory.agent.known == []
    with locking.result():  # type: ignore[attr-defined]
        assert memory.registered.tolist() == [[start, array.nbytes, 0]]


@pytest.fixture
def nixl() -> Any:
    return pytest.importorskip("nixl._api", reason="needs NIXL: pip install nixl")


def test_a_transfer_between_two_agents_of_nixl(nixl: Any) -> None:
    agents = [nixl.nixl_agent(name, nixl.nixl_agent_config(backends=["UCX"])) for name in ("here", "there")]
    here, there = (AgentMemory(agent, "host:0") for agent in agents)
    source = numpy.random.default_rng(1).integers(0, 256, (8, 1000), "u1")
    target = numpy.zeros_like(source)
    with here.lock(list(source)) as sent, there.lock(list(target)) as received:
        agents[0].add_remote_agent(agents[1].get_agent_metadata())
        transfer = agents[0].initialize_xfer("WRITE", sent.descs(), received.descs(), "there")
        state = agents[0].transfer(transfer)
        end = time.monotonic() + 120
        while state == "PROC":
            assert time.monotonic() < end
            state = agents[0].check_xfer_state(transfer)
        assert state == "DONE"
        agents[0].release_xfer_handle(transfer)
    assert (source == target).all()
    here.close()
    there.close()
    assert pinning.regions("host:0") == []


def test_what_is_no_agent_and_what_are_no_buffers(memory: AgentMemory, device: FakeDevice) -> None:
    with pytest.raises(TypeError, match="agent is None, which has no register_memory; give a nixl_agent"):
        AgentMemory(None, device)
    for wrong in (5, numpy.zeros(4)):  # an array would be locked element by element, in copies
        with pytest.raises(TypeError, match="it must be a list of buffers"):
            memory.lock(wrong)  # type: ignore[arg-type]
    memory.close()
    with pytest.raises(PinningError, match="closed> no longer registers anything; make another"):
        memory.lock([numpy.zeros(4)])
    assert device.locked == {}

# SPDX-License-Identifier: Apache-2.0
"""Copies over several links: eight GPUs, all joined by NVLink.

The stand-in checks the order of the calls and of their work, and computes how long copies would take at given rates.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import numpy
import pytest
from captures import Graph

import pinning
from child_process import run_in_child
from fake_device import in_threads
from made_up_pci import make_machine
from noise import noise
from pinning import PinningError, PluginUnavailableError, VendorError, arrays
from pinning.cli.status import status_of
from pinning.conformance.faults import eventually
from pinning.copies import CopyPath, costs
from pinning.copies import links as of_copies
from pinning.copies.work import bytes_moved
from pinning.machine import topology
from pinning.memory import default_pool
from pinning.queues import links as of_queues
from pinning.queues import pending
from pinning.runtime.per_device import device_slots
from pinning_cuda import CudaDevice
from small_links import MIB, shrink
from standins.libcuda import DRIVER, FAULTS
from standins.standin import StandIn

PEERS = [f"cuda:{index}" for index in range(1, 8)]


@pytest.fixture(autouse=True)
def joined(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shrink(monkeypatch.setattr)
    standin.configure("nvswitch")
    costs.threads = max(2, costs.threads)
    yield
    for device in pinning.devices():
        device_slots(device).pop(of_queues.peers_of, None)
    pending._seen.clear()  # else queues that are gone make the next test's peers look busy


def at_once(size: int, links: object, locked: float, to_device: bool = True) -> tuple[pinning.Copy, bool]:
    """A copy of `size` bytes to the device or back, and whether every byte is right. `locked`: the share that is."""
    source = noise(size)
    back = numpy.zeros(size, numpy.uint8)
    queue = pinning.Queue("cuda:0", links=links)  # type: ignore[arg-type]
    with queue, pinning.alloc(size, device="cuda:0") as there:
        parts = [each[: int(size * locked)] for each in (source, back)] if locked else []
        held = [pinning.lock(each, device="cuda:0") for each in parts]
        first, second = ("own", None) if not to_device else (None, "own")
        given = queue.links
        queue.links = first or given
        there_now = pinning.copy_async(there, source, queue=queue)
        queue.links = second or given
        home = pinning.copy_async(back, there, queue=queue)
        home.wait()
        for lock in held:
            lock.unlock()
    return (there_now if to_device else home), bool((back == source).all())


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize(
    ("size", "links"),
    [(64 * MIB, ["cuda:3"]), (100 * MIB + 13, "idle"), (100 * MIB + 13, ["cuda:1", "cuda:2", "cuda:7"])],
)
def test_every_byte_arrives(links: object, size: int, locked: bool, to_device: bool) -> None:
    before = bytes_moved()
    copy, right = at_once(size, links, locked, to_device)
    assert right
    counted = {path: now - before[path] for path, now in bytes_moved().items() if now != before[path]}
    assert counted == {"direct" if locked else "staged": 2 * size}
    assert copy.path is (CopyPath.DIRECT if locked else CopyPath.STAGED)
    over = min((size - 8 * MIB) // (16 * MIB), 8 if links == "idle" else 1 + len(links))  # type: ignore[arg-type]
    assert f"{copy.path} over {over} links: cuda:0, cuda:" in copy.reason


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("locked", [0.04, 0.5, 0.96])
def test_a_lock_may_end_in_any_links_share(locked: float, to_device: bool) -> None:
    assert at_once(64 * MIB + 13, ["cuda:3"], locked, to_device)[1]


@pytest.mark.parametrize("rest", [1, 9 * MIB, 20 * MIB])
@pytest.mark.parametrize("peers", [1, 3])
def test_a_last_round_that_is_too_small_for_all_links(monkeypatch: pytest.MonkeyPatch, peers: int, rest: int) -> None:
    monkeypatch.setattr(of_copies, "ROUND", 32 * MIB)
    source = noise((1 + peers) * 32 * MIB + rest)
    back = numpy.zeros_like(source)
    with pinning.Queue("cuda:0", links=PEERS[:peers]) as queue, pinning.alloc(source.size, device="cuda:0") as there:
        with pinning.lock(source, device="cuda:0"):
            assert f"over {1 + peers} links" in pinning.copy(there, source, queue=queue).reason
        pinning.copy(back, there, queue=queue)
    assert (back == source).all()


@pytest.mark.parametrize("size", [63 * MIB, 64 * MIB])
def test_by_default_only_the_devices_own_link_is_used(standin: StandIn, size: int) -> None:
    copy, right = at_once(size, "own", True)
    assert right and "links" not in copy.reason
    assert len({call.split()[-1] for call in standin.calls("cuMemcpyAsync")}) == 1, "all in the queue's own stream"
    copy, right = at_once(size, "idle", True)
    assert right and ("links" in copy.reason) == (size == 64 * MIB)


def test_links_of_all_queues_that_say_nothing(standin: StandIn) -> None:
    costs.links = ["cuda:0", "cuda:1"]
    try:
        copy, right = at_once(64 * MIB, None, True)
        assert right and copy.reason.endswith("direct over 2 links: cuda:0, cuda:1")
    finally:
        costs.links = "own"


@contextmanager
def memory(size: int) -> Iterator[tuple[pinning.Allocation, pinning.Allocation]]:
    """Locked memory of the host, and memory of the first GPU."""
    host = pinning.alloc(size, pinning.MemoryKind.HOST, device="cuda:0")
    with host, pinning.alloc(size, device="cuda:0") as there:
        yield host, there


def test_a_bus_does_not_fill_blocks_before_the_link_has_emptied_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_copies, "LARGEST_BLOCK", 4 * MIB)  # so that a peer's share is more than its blocks
    with pinning.Queue("cuda:0", links=["cuda:1"]) as queue, memory(64 * MIB) as (host, there):
        pinning.copy(there, host, queue=queue)
        way, gate = of_copies._ways["cuda:0", "cuda:1"], threading.Event()
        source = numpy.ctypeslib.as_array((ctypes.c_uint8 * host.size).from_address(host.ptr))
        source[:] = noise(host.size)
        held = way.link.call(gate.wait)
        copy = pinning.copy_async(there, host, queue=queue)
        assert "over 2 links" in copy.reason and not copy.done()
        time.sleep(0.2)  # in which a bus that does not wait fills all blocks
        gate.set()
        copy.wait()
        held.wait()
        back = numpy.empty_like(source)
        pinning.copy(back, there, queue=queue)
        assert (back == source).all()


@pytest.mark.parametrize(("gpus", "at_least"), [(2, 1.9), (4, 3.6), (8, 7.0)])
@pytest.mark.parametrize("what", ["to the device", "to the host", "a file"])
def test_what_it_would_take_at_given_rates(
    standin: StandIn, tmp_path: Path, gpus: int, at_least: float, what: str
) -> None:
    elapsed = ctypes.CDLL(DRIVER.soname).standin_elapsed
    elapsed.restype = ctypes.c_double
    path, took = tmp_path / "file", []
    path.touch()
    os.truncate(path, 512 * MIB)
    with pinning.Queue("cuda:0") as queue, memory(512 * MIB) as (host, there):
        for links in ("own", PEERS[: gpus - 1]):
            queue.links = links
            standin.configure("nvswitch;rates=55:400")
            if what == "a file":
                pinning.copy_file_async(there, path, queue=queue).wait()
            else:
                pair = (there, host) if what == "to the device" else (host, there)
                pinning.copy_async(*pair, queue=queue).wait()
            took.append(elapsed())
    assert took[0] >= at_least * took[1]


@pytest.mark.parametrize("read", ["copy_file", "copy_file_async", "load_file"])
def test_files_go_over_links_too(tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_copies, "ROUND", 32 * MIB)
    source, back = noise(150 * MIB + 13), numpy.zeros(150 * MIB + 13, numpy.uint8)
    path = tmp_path / "file"
    with pinning.Queue("cuda:0", links=["cuda:1", "cuda:4"]) as queue:
        before = by_peers()
        if read == "load_file":
            pinning.save_file({"a": source[: 90 * MIB], "b": source[90 * MIB :]}, path)
            loaded = pinning.load_file(path, queue=queue, framework="pinning")
            assert (numpy.concatenate([loaded[name].copy_to_host() for name in "ab"]) == source).all()
            del loaded
            gc.collect()
            arrays.synchronize("cuda:0")
            arrays.default_stream("cuda:0").close()
            default_pool(queue.device, pinning.MemoryKind.DEVICE).trim_to(0)
        else:
            source.tofile(path)
            with pinning.alloc(source.nbytes, device="cuda:0") as there:
                copy = getattr(pinning, read)(there, path, queue=queue)
                copy.wait()
                assert copy.path is CopyPath.STAGED
                assert copy.reason.endswith("staged over 3 links: cuda:0, cuda:1, cuda:4")
                queue.links = "own"
                pinning.copy(back, there, queue=queue)
                assert (back == source).all()
        assert by_peers() - before > 50 * MIB


def by_peers() -> int:
    """Bytes that went over peers' links, as `pinning top` shows them."""
    with pinning.locked(numpy.zeros(1, numpy.uint8), device="cuda:0"):  # makes this process visible
        return status_of(os.getpid()).by_peers


@pytest.mark.parametrize("waited", [True, False])
def test_a_file_that_ends_early_is_an_error_on_any_link(tmp_path: Path, waited: bool) -> None:
    path, gate = tmp_path / "file", threading.Event()
    path.touch()
    os.truncate(path, 200 * MIB)

    def cut() -> None:
        os.truncate(path, 150 * MIB)  # in the share of the peer
        gate.set()

    timer = threading.Timer(0.3, cut)
    with (
        pinning.Queue("cuda:0", links=["cuda:1"]) as queue,
        pinning.Queue("cuda:2") as other,
        pinning.alloc(200 * MIB, device="cuda:0") as there,
    ):
        queue.wait_for(other.call(gate.wait))
        timer.start()
        with pytest.raises(pinning.FileError, match="has it been truncated"):
            (pinning.copy_file if waited else pinning.copy_file_async)(there, path, queue=queue).wait()
        timer.join()


def test_it_comes_after_what_was_before_it_and_before_what_comes_after() -> None:
    size = 64 * MIB
    source, other, back = noise(size, 1), noise(size, 2), numpy.zeros(size, numpy.uint8)
    locks = [pinning.lock(each, device="cuda:0") for each in (source, other)]
    with pinning.Queue("cuda:0", links="idle") as queue, pinning.alloc(size, device="cuda:0") as there:
        for array in (source, other) * 3:
            pinning.copy_async(there, array, queue=queue)
            copy = pinning.copy_async(back, there, queue=queue)
            assert "over 3 links" in copy.reason
            copy.wait()
            assert (back == array).all()
    for lock in locks:
        lock.unlock()


@pytest.mark.parametrize("waited", [True, False])
def test_pageable_memory_is_read_in_turn_though_nothing_can_be_staged(
    monkeypatch: pytest.MonkeyPatch, waited: bool
) -> None:
    monkeypatch.setattr(costs, "staging_bytes", 0)
    source, back = numpy.zeros(64 * MIB, numpy.uint8), numpy.zeros(64 * MIB, numpy.uint8)

    def write() -> None:
        time.sleep(0.1)
        source[:] = 9

    with pinning.Queue("cuda:0", links=["cuda:1"]) as queue, pinning.alloc(source.nbytes, device="cuda:0") as there:
        queue.call(write)
        copy = (pinning.copy if waited else pinning.copy_async)(there, source, queue=queue)
        assert copy.path is CopyPath.PLAIN
        assert "costs.staging_bytes 0 leave no room" in copy.reason and "plain over 2 links" in copy.reason
        queue.links = "own"
        pinning.copy(back, there, queue=queue)
    assert (back == 9).all()


def test_a_peer_with_work_of_its_own_is_let_alone() -> None:
    own = pinning.alloc(4096, device="cuda:1")
    queue = pinning.Queue("cuda:0", links=["cuda:1", "cuda:2"])
    with own, pinning.Queue("cuda:1") as busy, memory(64 * MIB) as (host, there), queue:
        assert pinning.explain(there, host, queue=queue).reason.endswith("over 3 links: cuda:0, cuda:1, cuda:2")
        pinning.copy(own, numpy.zeros(4096, numpy.uint8), queue=busy)
        assert pinning.copy_async(there, host, queue=queue).reason.endswith("over 2 links: cuda:0, cuda:2")


@pytest.mark.parametrize("failing", ["cuMemAlloc:1", "cuMemcpyAsync:4", "cuMemcpyAsync:7", "cuStreamCreate:2"])
@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("waited", [True, False])
def test_what_a_peer_refuses_is_done_directly(standin: StandIn, failing: str, to_device: bool, waited: bool) -> None:
    size = 64 * MIB
    source = noise(size)
    with pinning.Queue("cuda:0") as queue, pinning.alloc(size, device="cuda:0") as there:
        array = source.copy() if to_device else numpy.zeros_like(source)
        if not to_device:
            pinning.copy(there, source, queue=queue)
        with pinning.locked(array, device="cuda:0"):
            queue.links = ["cuda:5"]
            standin.configure(f"nvswitch;fail={failing}:2")
            copy = pinning.copy if waited else pinning.copy_async
            copy(there, array, queue=queue).wait() if to_device else copy(array, there, queue=queue).wait()
            standin.configure("nvswitch")
        queue.links = "own"
        back = numpy.zeros_like(source)
        pinning.copy(back, there, queue=queue)
        assert (back == source).all() and (array == source).all()


def test_nothing_is_kept_where_another_copy_has_a_peers_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_copies, "POOL_BYTES", 4096)
    array = noise(64 * MIB)
    ptr, size, alive = array.ctypes.data, array.nbytes, weakref.ref(array)
    gc.collect()
    gc.disable()
    try:
        with pinning.Queue("cuda:0", links=["cuda:1"]) as queue, pinning.alloc(size, device="cuda:0") as there:
            with pinning.locked(array, device="cuda:0"):
                pinning.copy_async(there, array, queue=queue).wait()
                back = numpy.zeros_like(array)
                pinning.copy(back, there, queue=queue)
                assert (back == array).all()
            assert not pinning.is_locked(ptr, size)
            del array
            assert eventually(lambda: alive() is None)
    finally:
        gc.enable()


def test_blocks_on_a_peer_are_bounded_and_given_back(standin: StandIn) -> None:
    with memory(256 * MIB) as (host, there):
        standin.configure("nvswitch")
        with pinning.Queue("cuda:0", links=["cuda:6"]) as queue:
            for _ in range(4):
                pinning.copy_async(there, host, queue=queue)
                pinning.copy_async(host, there, queue=queue)
        (taken,) = (int(call.split()[-1]) for call in standin.calls("cuMemAlloc"))
        assert taken <= 64 * MIB
        assert 0 <= pinning.copies.trim_staging() - taken < MIB  # and the list with the word that queues wait for


def test_what_cannot_be_links() -> None:
    for links, error, text in (
        ("none", ValueError, "links is 'none'; it must be 'own', 'idle', or a list"),
        (3, TypeError, "links is"),
        (["cuda:1", "cuda:1"], PinningError, "each device once, not cuda:1, cuda:1"),
        (["cuda:0"], PinningError, "beside the queue's own, which is cuda:0"),
        (["cuda:99"], PluginUnavailableError, "there is no device 'cuda:99'"),
        (["host"], PinningError, "host:0 cannot carry copies of cuda:0: it is of another vendor"),
    ):
        with pytest.raises(error, match=text.replace("[", r"\[")):
            pinning.Queue("cuda:0", links=links)  # type: ignore[arg-type]


def test_peers_without_access_or_a_bus_of_their_own(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.configure()  # without the switch only neighbours are joined
    with pytest.raises(PinningError, match="cuda:2 cannot carry copies of cuda:0: no link joins them"):
        pinning.Queue("cuda:0", links=["cuda:2"])
    standin.configure("no_peers;nvswitch")
    with pytest.raises(PinningError, match="no link joins them"):
        pinning.Queue("cuda:0", links=["cuda:1"])
    standin.configure("nvswitch")
    monkeypatch.setattr(topology, "PCI_DEVICES", make_machine(tmp_path))
    with pytest.raises(PinningError, match="behind a switch they share the way to the host"):
        pinning.Queue("cuda:0", links=["cuda:1"])


@pytest.mark.parametrize("error", [VendorError("query", 1, "FAILED"), ValueError("a bug")])
def test_peers_that_cannot_be_asked_are_left_out(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def link_to(self: CudaDevice, other: object) -> str:
        if self.name in ("cuda:1", "cuda:2"):
            raise error
        return "NVLink"

    monkeypatch.setattr(CudaDevice, "link_to", link_to)
    copy, right = at_once(64 * MIB, "idle", True)
    assert right and copy.reason.endswith("over 3 links: cuda:0, cuda:3, cuda:4")


@pytest.mark.parametrize(
    ("rates", "own"), [((2, 1, 1), 36), ((512, 4, 4), 64), ((512, 4, 512), 36), ((512, None, 1), 26)]
)
def test_shares_follow_the_rates_of_the_buses(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, rates: tuple[int | None, ...], own: int
) -> None:
    """A bus that is too slow for a share is left out; all shares are equal if one rate is unknown."""
    names = ["0001:3b:00.0", "0001:3c:00.0", "0001:3d:00.0"]
    pinning.copies.trim_staging()
    monkeypatch.setattr(of_copies, "rate_of", dict(zip(names, rates, strict=True)).get)
    with memory(64 * MIB) as (host, there), pinning.Queue("cuda:0", links=["cuda:1", "cuda:2"]) as queue:
        standin.configure("nvswitch")
        pinning.copy(there, host, queue=queue)
        calls = [call.split() for call in standin.calls("cuMemcpyAsync")]
        assert sum(int(size) for _, _, _, size, stream in calls if stream == calls[0][-1]) == own * MIB
    pinning.copies.trim_staging()


@pytest.mark.slow
@pytest.mark.parametrize(("to_device", "waited"), [(True, True), (False, False)])
def test_whatever_call_fails_all_bytes_are_right_or_it_says_so(to_device: bool, waited: bool) -> None:
    size = 64 * MIB
    there, array, back = pinning.alloc(size, device="cuda:0"), numpy.empty(size, numpy.uint8), noise(size)
    with there, pinning.locked(array, device="cuda:0"), pinning.Queue("cuda:0") as plain:
        for n in count(1):
            array[:] = to_device * n % 251
            pinning.fill(there, (not to_device) * n % 251, queue=plain)
            with suppress(VendorError), pinning.Queue("cuda:0", links=["cuda:1"]) as queue:
                FAULTS.begin(n)
                failed = True
                with suppress(VendorError):
                    copy = pinning.copy if waited else pinning.copy_async
                    copy(*((there, array) if to_device else (array, there)), queue=queue).wait()
                    failed = False
                last = n > len(FAULTS.calls())
                FAULTS.begin()
            pinning.copy(back, there, queue=plain)
            assert failed or ((back == n % 251).all() and (array == n % 251).all())
            pinning.copies.trim_staging()  # so that everything is created anew each time
            if last:
                break
    assert n > 30 and not failed


def test_a_fork_has_nothing_of_it() -> None:
    with memory(64 * MIB) as (host, there), pinning.Queue("cuda:0", links=["cuda:1"]) as queue:
        copy = pinning.copy_async(there, host, queue=queue)

        def child() -> None:
            assert pinning.copies.trim_staging() == 0
            with pytest.raises(PinningError, match="belongs to the process that made it"):
                pinning.copy(there, host, queue=queue)

        run_in_child(child)
        copy.wait()
        assert pinning.copy(host, there, queue=queue).reason.endswith("direct over 2 links: cuda:0, cuda:1")


def test_what_is_captured_goes_over_the_own_link(standin: StandIn) -> None:
    source = noise(64 * MIB)
    with pinning.Queue("cuda:0", links="idle") as queue, pinning.alloc(source.nbytes, device="cuda:0") as there:
        with pinning.locked(source, device="cuda:0"):
            with Graph(queue.handle) as graph:
                assert "links" not in pinning.copy_async(there, source, queue=queue).reason
            source[::7] += 1
            graph.launch()
            graph.close()
        back = numpy.zeros_like(source)
        pinning.copy(back, there, queue=queue)
    assert (back == source).all()


@pytest.mark.parametrize("drop", [True, False])
def test_a_queue_that_is_closed_meanwhile(drop: bool) -> None:
    source, back = noise(64 * MIB), numpy.zeros(64 * MIB, numpy.uint8)
    with pinning.alloc(source.nbytes, device="cuda:0") as there, pinning.locked(source, back, device="cuda:0"):
        for to, origin in ((there, source), (back, there)):
            queue = pinning.Queue("cuda:0", links=["cuda:1", "cuda:2"])
            copy = pinning.copy_async(to, origin, queue=queue)
            if not drop:
                queue.close()
                assert copy.done()
            del queue
            copy.wait()
    assert (back == source).all()


def test_a_queue_that_is_closed_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_copies, "ROUND", 32 * MIB)
    asked = of_copies.ways_of
    with memory(192 * MIB) as (host, there), pinning.Queue("cuda:0", links=["cuda:1"]) as queue:
        calls = count()

        def closing(of: pinning.Queue) -> object:
            if next(calls) == 1:
                in_threads(lambda each: each.close(), [of])
            return asked(of)

        with monkeypatch.context() as patched, pytest.raises(PinningError, match="closed"):
            patched.setattr(of_copies, "ways_of", closing)
            pinning.copy(there, host, queue=queue)
        with pinning.Queue("cuda:0", links=["cuda:1"]) as other:
            # Blocks on the peer may not have been given back yet.
            assert eventually(lambda: "over 2 links" in pinning.explain(there, host, queue=other).reason)


def test_a_peer_whose_own_copies_begin_meanwhile_is_let_go(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_copies, "ROUND", 32 * MIB)
    asked, small, calls = of_copies.ways_of, numpy.zeros(4096, numpy.uint8), count()
    source, back = noise(192 * MIB), numpy.zeros(192 * MIB, numpy.uint8)
    with (
        pinning.alloc(source.nbytes, device="cuda:0") as there,
        pinning.alloc(small.nbytes, device="cuda:1") as own,
        pinning.Queue("cuda:0", links=["cuda:1"]) as queue,
        pinning.Queue("cuda:1") as busy,
        pinning.locked(source, device="cuda:0"),
    ):

        def at_work(of: pinning.Queue) -> object:
            if next(calls) >= 1:
                pinning.copy_async(own, small, queue=busy)
            return asked(of)

        monkeypatch.setattr(of_copies, "ways_of", at_work)
        standin.configure("nvswitch")
        copy = pinning.copy(there, source, queue=queue)
        calls = [call.split() for call in standin.calls("cuMemcpyAsync")]
        assert "over 2 links" in copy.reason
        own = sum(int(size) for _, _, _, size, stream in calls if stream == calls[0][-1])
        assert own >= 4 * 32 * MIB, "after the first round all goes directly"
        monkeypatch.undo()
        queue.links = "own"
        pinning.copy(back, there, queue=queue)
    assert (back == source).all()

# SPDX-License-Identifier: Apache-2.0
"""`pinning.torch.sleepable`, `sleep` and `wake`. Host memory, in pools of ours, stands in for a GPU's."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import numpy
import pytest

import pinning
import pinning.sleeping as machinery
from child_process import run_in_child
from pinning import GraphCaptureError, OutOfMemoryError, PinningError
from pinning.conformance.faults import eventually

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from pinning.torch import park, parking, sleep, sleep_async, sleepable, sleeping, wake, wake_async  # noqa: E402

LOST = 0xDB
MIB = 1 << 20


class Pool:
    """A pool of torch, whose segments are arrays of the host."""

    current: ClassVar[list[Pool]] = []

    def __init__(self, allocator: object) -> None:
        self.segments: list[Any] = []
        self.freed: set[int] = set()

    def tensor(self, size: int) -> Any:
        array = numpy.zeros(size + 512, numpy.uint8)  # one block that is in use, and one that is not
        self.segments.append(array)
        return torch.from_numpy(array)[:size]

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {
                "device": 0,
                "address": array.ctypes.data,
                "blocks": [
                    {
                        "size": array.size - 512,
                        "state": "inactive" if array.ctypes.data in self.freed else "active_allocated",
                    },
                    {"size": 512, "state": "inactive"},
                ],
            }
            for array in self.segments
        ]


@contextmanager
def using(pool: Pool, index: int) -> Iterator[None]:
    Pool.current.append(pool)
    yield
    Pool.current.pop()


class Gpu:
    """What sleeps is overwritten. The call number `fail` fails."""

    def __init__(self) -> None:
        self.asleep: set[int] = set()
        self.fail = 0

    def set_awake(self, ptr: int, awake: bool) -> None:
        self.fail -= 1
        if self.fail == 0:
            raise OutOfMemoryError("cuMemCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY")
        if not awake and ptr not in self.asleep:
            array = next(a for pool in pools() for a in pool.segments if a.ctypes.data == ptr)
            array[:] = LOST
        (self.asleep.discard if awake else self.asleep.add)(ptr)


def pools() -> list[Pool]:
    return [pool for tag in sleeping._tags.values() for pool in tag.pools]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu()
    for name, stand_in in {
        "MemPool": Pool,
        "use_mem_pool": using,
        "device": lambda index: nullcontext(),
        "current_device": lambda: 0,
        "mem_get_info": lambda device: (0, 1 << 30),
        "is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for module, name, stand_in in (
        (sleeping, "_gpu", lambda name: gpu),
        (sleeping, "_name", lambda index: "host:0"),
        (sleeping, "_allocator", lambda: parking),
        (parking, "_device_name", lambda tensor: "host:0"),
    ):
        monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(parking, "allocator", lambda: None, raising=False)
    monkeypatch.setattr(machinery, "_synchronize", lambda memory: None)  # a queue of the host does all of this
    yield gpu
    gpu.fail = 0
    for tag in sleeping._tags.values():
        tag.queue.synchronize()
    sleeping._tags.clear()
    parking._parked.clear()
    gc.collect()


def tensor(tag: str, size: int, seed: int = 1, **how: Any) -> Any:
    with sleepable(tag, **how) as pool:
        assert Pool.current[-1] is pool
        made = pool.tensor(size)
    made.random_(0, 200, generator=torch.Generator().manual_seed(seed))
    return made


def test_contents_come_back_to_the_same_addresses(gpu: Gpu) -> None:
    tensors = [tensor("weights", size, size) for size in (1000, 3 * MIB, 50, 2 * MIB)]
    before, addresses = [each.clone() for each in tensors], [each.data_ptr() for each in tensors]
    view = tensors[1][1000:2000]
    for _ in range(2):
        sleep("weights")
        sleep("weights")
        assert len(gpu.asleep) == 4 and all((each == LOST).all() for each in tensors)
        wake("weights")
        wake("weights")
        assert not gpu.asleep and all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
        assert [each.data_ptr() for each in tensors] == addresses and torch.equal(view, before[1][1000:2000])
        tensors[0].fill_(7)
        before[0].fill_(7)


def test_a_tag_drops_its_contents_if_told_there_or_at_its_creation(gpu: Gpu) -> None:
    dropped, kept = tensor("cache", MIB, keep=False), tensor("weights", MIB)
    for how in ({}, {"keep": True}, {"keep": False}):
        before = dropped.clone(), kept.clone()
        sleep(**how)  # type: ignore[arg-type]
        assert len(gpu.asleep) == 2
        wake()
        assert torch.equal(dropped, before[0]) == bool(how.get("keep", False))
        assert torch.equal(kept, before[1]) == bool(how.get("keep", True))
        for each in (dropped, kept):
            each.copy_(torch.arange(MIB) % 199)


def test_tags_in_any_order(gpu: Gpu) -> None:
    choice = random.Random(5)
    names = ["a", "b", "c", "d"]
    tensors = {name: [tensor(name, choice.randrange(1, 2 * MIB), seed) for seed in range(3)] for name in names}
    contents = {name: [each.clone() for each in tensors[name]] for name in names}
    asleep: set[str] = set()
    for _ in range(40):
        name = choice.choice(names)
        act = choice.choice(["sleep", "wake", "write", "fail"])
        if act == "sleep":
            sleep(name)
            asleep.add(name)
        elif act == "wake":
            wake(name)
            asleep.discard(name)
        elif act == "fail":
            gpu.fail = choice.randrange(1, 4)
            try:
                (wake if name in asleep else sleep)(name)
            except OutOfMemoryError:
                pass
            else:
                asleep ^= {name}
            gpu.fail = 0
        elif name not in asleep:
            which = choice.randrange(3)
            tensors[name][which].fill_(choice.randrange(200))
            contents[name][which].copy_(tensors[name][which])
        assert len(gpu.asleep) == 3 * len(asleep)
        for each in set(names) - asleep:
            assert all(torch.equal(a, b) for a, b in zip(tensors[each], contents[each], strict=True))


@pytest.mark.parametrize("failing", ["__init__", "copy_async", "copy_batch_async", "gpu"])
def test_an_error_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch, gpu: Gpu, failing: str) -> None:
    tensors = [tensor("weights", size, keep=False) for size in (100, 2 * MIB)]
    before = [each.clone() for each in tensors]

    def fail(*arguments: object, **more: object) -> None:
        raise MemoryError("no room")

    def fails(act: Any) -> None:
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            if failing == "gpu":
                gpu.fail = 2
                patch.setattr(torch.cuda, "empty_cache", lambda: setattr(gpu, "fail", 1))  # nothing is cached
            else:
                patch.setattr(pinning.Arena if failing == "__init__" else machinery, failing, fail)
            act("weights", **({"keep": True} if act is sleep else {}))
        gpu.fail = 0

    fails(sleep)
    assert not gpu.asleep and all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    sleep("weights", keep=True)
    if failing != "__init__":
        fails(wake)
        assert len(gpu.asleep) == 2
    wake("weights")
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_what_torch_has_cached_is_freed_if_a_gpu_is_full(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    kept = tensor("weights", 100)
    before = kept.clone()
    sleep("weights")
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    gpu.fail = 1
    wake("weights")
    assert emptied and torch.equal(kept, before)


def test_what_is_used_first_wakes_first(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    tensors = [tensor("weights", 2 * MIB, seed) for seed in range(4)]
    before = [each.clone() for each in tensors]
    asleep = sleep_async("weights")
    gate, copies, copy = threading.Event(), 0, machinery.copy_async

    def slow(*arguments: Any, **more: Any) -> Any:
        nonlocal copies
        copies += 1
        if copies > 2:
            gate.wait(60)
        return copy(*arguments, **more)

    asleep.wait()
    monkeypatch.setattr(machinery, "copy_async", slow)
    first, second, rest = wake_async("weights", [tensors[3], [tensors[1], torch.zeros(3)]])
    first.wait()
    second.wait()
    assert torch.equal(tensors[3], before[3]) and torch.equal(tensors[1], before[1]) and not rest.done()
    gate.set()
    rest.wait()
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_events_after_a_failure_fail_too(gpu: Gpu) -> None:
    kept = tensor("weights", 100)
    sleep("weights")
    gpu.fail = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "empty_cache", lambda: setattr(gpu, "fail", 1))
        events = wake_async("weights", [kept])
        for event in events:
            with pytest.raises(OutOfMemoryError):
                event.wait()
    gpu.fail = 0
    wake("weights")


def test_contexts_may_be_nested_and_used_by_many_threads(gpu: Gpu) -> None:
    with sleepable("outer") as outer, sleepable("inner") as inner, sleepable("inner") as innermost:
        assert len({outer, inner, innermost}) == 3
        tensors = [each.tensor(1000) for each in (outer, inner, innermost)]
        with pytest.raises(PinningError, match="leave the `with` block"):
            sleep("outer")
    with sleepable("inner") as again:
        assert again in (inner, innermost)
    sleep("inner")
    assert gpu.asleep == {each.data_ptr() for each in tensors[1:]}
    with pytest.raises(PinningError, match="'inner' is asleep"), sleepable("inner"):
        pass
    wake()


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_tag_without_tensors_is_given_back(gpu: Gpu) -> None:
    def regions() -> set[int]:
        gc.collect()
        return {region.start for region in pinning.regions("host:0")}

    before = regions()
    tensor("weights", 2 * MIB)
    sleep("weights")
    wake("weights")
    (pool,) = pools()
    pool.freed = {each.ctypes.data for each in pool.segments}
    sleep("weights")
    assert not gpu.asleep and not pools() and eventually(lambda: regions() <= before)
    wake("weights")


def test_host_memory_grows_with_the_tag(gpu: Gpu) -> None:
    tensors = []
    for number in range(4):
        tensors.append(tensor("weights", MIB + number * 5000, number))
        before = [each.clone() for each in tensors]
        if number % 2:
            sleep("weights")
            wake("weights")
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_modules_are_parked_beside_it(gpu: Gpu) -> None:
    kept, module = tensor("weights", 100), torch.nn.Linear(10, 10)
    before = kept.clone(), module.weight.detach().clone()
    sleep("weights")
    park(module)
    wake("weights", module)
    assert torch.equal(kept, before[0]) and torch.equal(module.weight, before[1])


def test_a_forked_child_is_refused(gpu: Gpu) -> None:
    kept = tensor("weights", 100)
    before = kept.clone()

    def child() -> None:
        for act in (sleep, wake):
            with pytest.raises(PinningError, match="fork"):
                act("weights")

    run_in_child(child)
    sleep("weights")
    run_in_child(child)
    wake("weights")
    assert torch.equal(kept, before)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for act in (sleep, wake):
        with pytest.raises(PinningError, match="nothing was allocated with sleepable\\('wieghts'\\)"):
            act("wieghts")
    tensor("weights", 100)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for act in (sleep, wake):
        with pytest.raises(GraphCaptureError):
            act("weights")

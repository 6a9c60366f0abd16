# SPDX-License-Identifier: Apache-2.0
"""`pinning.torch` without a GPU: what is pinned, and for how long."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

import pinning
from fake_device import FakeDevice
from pinning import NotLockedError, PinnedMap
from pinning.conformance.faults import eventually

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from pinning.torch import Pin, pin, unpin  # noqa: E402
from pinning.torch import pins as of_pins  # noqa: E402


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    device = FakeDevice()
    yield device
    for each in list(of_pins._pins):
        each.unpin()
    assert list(pinning.pinned_map(device)) == []


@pytest.fixture
def on(device: FakeDevice) -> PinnedMap:
    return pinning.pinned_map(device)


def storages(*tensors: Any) -> list[tuple[int, int]]:
    return sorted({(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors})


def locked(on: PinnedMap) -> list[tuple[int, int]]:
    return [(region.start, region.size) for region in on]


def test_a_tensor_is_locked_as_its_whole_storage(device: FakeDevice, on: PinnedMap) -> None:
    base = torch.zeros(1000)
    view = base[100:200]
    held = pin(view, device=device)
    assert locked(on) == storages(base) and held.nbytes == 4000 and held.held
    unpin(base)
    assert locked(on) == [] and not held.held


def test_a_module_is_locked_once_for_each_storage(device: FakeDevice, on: PinnedMap) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 30))
    model.register_buffer("table", torch.arange(10))
    tensors = [*model.parameters(), *model.buffers()]
    with pin(model, device=device):
        assert locked(on) == storages(*tensors)
        assert all(region.references == 1 for region in on)
        with pin(model.state_dict(), device=device):
            assert all(region.references == 2 for region in on)
        model.load_state_dict({name: torch.zeros_like(each) for name, each in model.state_dict().items()})
        assert locked(on) == storages(*tensors), "what copies in place changes nothing"
    assert locked(on) == []


def test_an_optimizer_s_state_is_locked(device: FakeDevice, on: PinnedMap) -> None:
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 30)).sum().backward()
    optimizer.step()
    with pin(optimizer, device=device):
        moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        assert set(storages(*moments)) <= set(locked(on))


def test_a_pin_lasts_without_its_handle_and_ends_with_its_owner(device: FakeDevice, on: PinnedMap) -> None:
    model = torch.nn.Linear(30, 20)
    pin(model, device=device)
    gc.collect()
    assert len(locked(on)) == 2
    del model
    gc.collect()
    assert eventually(lambda: locked(on) == [])


def test_a_temporary_view_does_not_end_the_pin_of_its_storage(device: FakeDevice, on: PinnedMap) -> None:
    base = torch.zeros(1000)
    pin(base.view(-1), device=device)
    gc.collect()
    time.sleep(0.05)
    assert locked(on) == storages(base)
    del base
    assert eventually(lambda: locked(on) == [])


def test_what_has_moved_is_noticed(device: FakeDevice, on: PinnedMap) -> None:
    tensor = torch.zeros(1000)
    held = pin(tensor, device=device)
    tensor.set_(torch.ones(500))
    held.refresh(tensor)
    assert locked(on) == storages(tensor)
    tensor.untyped_storage().resize_(1 << 20)
    held.refresh(tensor)
    assert locked(on) == storages(tensor)
    held.unpin()
    held.unpin()


def test_two_threads_that_give_one_pin_up(device: FakeDevice, on: PinnedMap) -> None:
    tensors = [torch.zeros(100) for _ in range(3)]
    held = pin(tensors, device=device)
    first, unlocked = tensors[0].untyped_storage().data_ptr(), []
    data, lock = held._locks[first]

    class Slow:
        def unlock(self) -> None:
            lock.unlock()
            if not unlocked:
                unlocked.append(True)
                held.unpin()  # as another thread would meanwhile

    held._locks[first] = data, Slow()  # type: ignore[assignment]
    held.unpin()
    assert unlocked and locked(on) == [] and held not in of_pins._pins
    held.unpin()


def test_pins_are_counted(device: FakeDevice, on: PinnedMap) -> None:
    tensor = torch.zeros(1000)
    first, second = pin(tensor, device=device), pin(tensor, device=device)
    unpin(tensor)
    assert first.held and not second.held and len(locked(on)) == 1
    unpin(tensor)
    assert locked(on) == []
    with pytest.raises(NotLockedError, match="has not pinned this"):
        unpin(tensor)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(3, device="meta"), "meta"),
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: 3, "3 contains no tensors"),
        (lambda: {"a": torch.eye(3).to_sparse()}, "indices"),
    ],
)
def test_what_has_no_memory_of_its_own_is_refused(device: FakeDevice, make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pin(make(), device=device)


def test_nothing_is_locked_after_a_refusal(device: FakeDevice, on: PinnedMap) -> None:
    tensors = [torch.zeros(1000), torch.eye(3).to_sparse()]
    with pytest.raises(TypeError):
        pin(tensors, device=device)
    assert locked(on) == [] and of_pins._pins == []


def test_small_and_strange_tensors(device: FakeDevice, on: PinnedMap) -> None:
    quantised = torch.quantize_per_tensor(torch.ones(100), 0.1, 0, torch.qint8)
    tensors = [torch.empty(0), quantised, torch.zeros(3, dtype=torch.bfloat16), torch.ones(2, requires_grad=True)]
    with pin(tensors, device=device) as held:
        assert isinstance(held, Pin)
        assert len(locked(on)) == 3
    with pin([], device=device):
        pass

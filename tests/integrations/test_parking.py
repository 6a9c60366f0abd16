# SPDX-License-Identifier: Apache-2.0
"""`pinning.torch.park` and `wake`: a module's contents come back unchanged. Host memory stands in for a GPU's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

import pinning
import pinning.sleeping as machinery
from pinning import PinningError
from pinning.conformance.faults import eventually

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from pinning.torch import park, parking, wake  # noqa: E402


@pytest.fixture(autouse=True)
def host_as_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(parking, "_device_name", lambda tensor: "host:0")
    yield
    parking._parked.clear()


def model() -> Any:
    """A module with tied weights, a buffer that is a view with strides, and a large weight."""
    made = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.Linear(700, 700), torch.nn.Linear(5, 3))
    made[1].weight = made[0].weight
    base = torch.arange(120.0).reshape(10, 12)
    made.register_buffer("base", base)
    made.register_buffer("view", base.t()[2:5])
    return made


def contents(holder: Any) -> list[Any]:
    return [tensor.detach().clone() for tensor in parking._tensors_of([holder])]


def test_all_comes_back_into_the_same_parameters() -> None:
    made = model()
    parameters, before = list(made.parameters()), contents(made)
    for _ in range(2):
        parked = park(made)
        assert parked.parked and parked.nbytes == 4 * (700 * 700 + 2 * 700 + 3 * 5 + 3 + 120)
        assert all(each.untyped_storage().nbytes() == 0 for each in made.parameters())
        with pytest.raises(RuntimeError):
            made[0](torch.zeros(1, 700))
        wake(made)
        assert not parked.parked
        assert all(a is b for a, b in zip(made.parameters(), parameters, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(contents(made), before, strict=True))
    assert made[1].weight is made[0].weight
    assert made.view.stride() == (1, 12) and made.view.data_ptr() == made.base.data_ptr() + 2 * 4
    made.base[0, 2] = -1
    assert made.view[0, 0] == -1


def test_an_optimizer_and_gradients_go_along() -> None:
    made = model()
    adam = torch.optim.Adam(made.parameters())
    made[0](torch.ones(2, 700)).sum().backward()
    adam.step()
    before, state = contents(made), contents(adam)
    park(made, adam)
    assert made[0].weight.grad.untyped_storage().nbytes() == 0
    wake(adam)
    assert all(torch.equal(a, b) for a, b in zip(contents(made) + contents(adam), before + state, strict=True))


def test_modules_that_were_parked_together_park_and_wake_alone() -> None:
    made = [model(), model()]
    before = [contents(each) for each in made]
    park(*made)
    wake(*made)
    park(made[0])
    wake(made[1])
    assert all(each.untyped_storage().nbytes() == 0 for each in made[0].parameters()), "it still sleeps"
    park(made[1])
    wake(*made)
    assert all(map(torch.equal, chain(*map(contents, made)), chain(*before)))


@pytest.mark.parametrize("failing", ["__init__", "copy_async", "copy_batch_async"])
def test_an_error_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    made = model()
    before = contents(made)

    def fail(*arguments: object, **more: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(pinning.Arena if failing == "__init__" else machinery, failing, fail)
        with pytest.raises(MemoryError, match="no room"):
            park(made)
    assert all(torch.equal(a, b) for a, b in zip(contents(made), before, strict=True))
    parked = park(made)
    if failing != "__init__":
        with monkeypatch.context() as patch:
            patch.setattr(machinery, failing, fail)
            with pytest.raises(MemoryError, match="no room"):
                wake(made)
        assert parked.parked
        assert all(each.untyped_storage().nbytes() == 0 for each in made.parameters())
    wake(made)
    assert all(torch.equal(a, b) for a, b in zip(contents(made), before, strict=True))


def test_copies_are_staged_if_too_much_would_be_locked() -> None:
    made = model()
    before = contents(made)
    pinning.budget(4096)
    try:
        park(made)
        wake(made)
    finally:
        pinning.budget(1.0)
    assert all(torch.equal(a, b) for a, b in zip(contents(made), before, strict=True))


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_the_hosts_memory_goes_with_the_module() -> None:
    def regions() -> set[int]:
        gc.collect()
        return {region.start for region in pinning.regions("host:0")}

    before = regions()
    made = model()
    park(made)
    larger = torch.nn.Sequential(made, torch.nn.Linear(900, 900))
    wake(made)
    park(larger)
    park(torch.nn.Linear(10, 10))
    parking._parked.clear()
    del made, larger
    assert eventually(lambda: regions() <= before)


def test_what_is_refused() -> None:
    made = model()
    with pytest.raises(TypeError, match="modules and optimizers"):
        park()
    with pytest.raises(TypeError, match="modules and optimizers"):
        park(torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(PinningError, match="this Sequential was not parked"):
        wake(made)
    park(made)
    with pytest.raises(PinningError, match="it is parked; wake it first"):
        park(made)
    with pytest.raises(PinningError, match="it is parked; wake it first"):
        park(made[0])
    wake(made)
    wake(made)
    shared = torch.nn.Module()
    shared.register_buffer("array", torch.from_numpy(pinning.arrays.pinned_array(10, "f4")))
    with pytest.raises(PinningError, match="was not allocated by torch"):
        park(shared)

# SPDX-License-Identifier: Apache-2.0
"""`pinning.cupy` with a minimal stub of CuPy; tests/vendors/cuda/with_cupy.py tests it with CuPy itself."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pinning
from pinning.conformance.faults import eventually


@pytest.fixture
def of_cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    stub: Any = ModuleType("cupy")
    stub.cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(id=1), PinnedMemoryPointer=lambda memory, offset: SimpleNamespace(memory=memory)
    )
    monkeypatch.setitem(sys.modules, "cupy", stub)
    monkeypatch.delitem(sys.modules, "pinning.cupy", raising=False)
    yield importlib.import_module("pinning.cupy")
    sys.modules.pop("pinning.cupy", None)
    vars(pinning).pop("cupy", None)


def test_pinned_memory_that_is_dropped_waits_for_no_driver(of_cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may drop it in the middle of anything, and a driver's free waits for its GPUs."""

    class Memory:
        ptr, freed_by = 4096, 0

        def free(self) -> None:
            self.freed_by = threading.get_ident()

    memory = Memory()
    monkeypatch.setattr(of_cupy, "alloc", lambda size, kind, device: memory if device == "cuda:1" else None)
    pointer = of_cupy.pinned_memory(100)
    assert (pointer.memory.ptr, pointer.memory.size, memory.freed_by) == (4096, 100, 0)
    del pointer
    assert eventually(lambda: memory.freed_by)
    assert memory.freed_by != threading.get_ident()


def test_pinned_memory_goes_back(of_cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_cupy, "alloc", lambda size, kind, device: pinning.alloc(size, kind, device="host:0"))
    pointer = of_cupy.pinned_memory(100)
    at = pointer.memory.ptr
    assert pinning.is_locked((at, 100), device="host:0")
    del pointer
    assert eventually(lambda: not pinning.is_locked((at, 100), device="host:0"))


def test_memory_in_a_capture_is_of_cupys_pool(of_cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Captured:
        def alloc(self, nbytes: int) -> None:
            raise pinning.GraphCaptureError("the stream is being captured")

    cupy = sys.modules["cupy"]
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=8), raising=False)
    pool = SimpleNamespace(malloc=lambda nbytes: f"{nbytes} of CuPy's")
    monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: pool, raising=False)
    monkeypatch.setattr(of_cupy, "_queue", lambda stream, index: Captured())
    assert of_cupy.device_memory(100) == "100 of CuPy's"

# SPDX-License-Identifier: Apache-2.0
"""The code on the pages for vLLM, LMCache and DeepSpeed, called with the signatures that these libraries use."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pinning
from folders import ROOT
from pinning.machine import numa

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

DOCS = ROOT / "docs"


def run(monkeypatch: pytest.MonkeyPatch, page: str, library: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Run a page's code with stub modules in place of a library, and return the names that it defines."""
    for name, content in library.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
        if parent := name.rpartition(".")[0]:
            setattr(sys.modules[parent], name.rpartition(".")[2], module)
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    exec(compile(code, page, "exec"), names)
    return names


def soon_nothing_is_locked(at: int) -> None:
    end = time.monotonic() + 60
    while pinning.find(at) is not None:
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.01)


def test_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(monkeypatch, "vllm.md", {"vllm": {}, "vllm._custom_ops": {"swap_blocks": None}})
    queue = pinning.Queue(pinning.default_device())
    names["current_queue"] = lambda device: queue  # torch has none without a GPU
    ops = sys.modules["vllm._custom_ops"]

    # A worker moves blocks of each layer, first out of the cache, then back to other places.
    block, layers = 1000, 2
    host = [names["host_blocks"](8, block) for _ in range(layers)]
    assert [tuple(each.shape) for each in host] == [(8, block)] * layers and not any(each.any() for each in host)
    cache = [torch.randint(-128, 128, (16, block), dtype=torch.int8) for _ in range(layers)]
    names["pin_tensor"](cache[0])
    assert pinning.is_locked(cache[0])
    before = [each.clone() for each in cache]
    out = torch.tensor([[3, 0], [7, 5], [15, 1]], dtype=torch.int64)
    back = torch.tensor([[0, 2], [5, 3], [1, 4]], dtype=torch.int64)
    for mapping, sources, targets in ((out, cache, host), (back, host, cache)):
        for src, dst in zip(sources, targets, strict=True):
            ops.swap_blocks(src, dst, block, mapping)
    queue.synchronize()
    for each, then in zip(cache, before, strict=True):
        then[[2, 3, 4]] = then[[3, 7, 15]]
        assert torch.equal(each, then)
    del src, dst, sources, targets, host
    for arena in names["arenas"]:
        arena.wait(timeout=60)
        arena.close()
    queue.close()
    pinning.torch.unpin(cache[0])


@pytest.mark.parametrize("kind", ["plain", "numa", "shared"])
def test_lmcache(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    functions = ["alloc_pinned_ptr", "free_pinned_ptr", "alloc_pinned_numa_ptr", "free_pinned_numa_ptr"]
    functions += ["alloc_shm_pinned_ptr", "free_shm_pinned_ptr"]
    run(monkeypatch, "lmcache.md", {"lmcache": {}, "lmcache.c_ops": dict.fromkeys(functions)})
    lmc_ops = sys.modules["lmcache.c_ops"]
    size, nodes = 100_001, numa.nodes()
    if kind == "numa" and not nodes:
        pytest.skip("needs a machine that says which NUMA nodes it has")
    alloc, free = {
        "plain": (lambda: lmc_ops.alloc_pinned_ptr(size, 0), lambda ptr: lmc_ops.free_pinned_ptr(ptr)),
        "numa": (
            lambda: lmc_ops.alloc_pinned_numa_ptr(size, min(nodes)),
            lambda ptr: lmc_ops.free_pinned_numa_ptr(ptr, size),
        ),
        "shared": (
            lambda: lmc_ops.alloc_shm_pinned_ptr(size, "/test-pages"),
            lambda ptr: lmc_ops.free_shm_pinned_ptr(ptr, size, "/test-pages"),
        ),
    }[kind]
    # An allocator makes a tensor of the address, cuts it up, and frees the address in the end.
    ptr = alloc()
    buffer = torch.frombuffer((ctypes.c_uint8 * size).from_address(ptr), dtype=torch.uint8)
    assert buffer.data_ptr() == ptr and pinning.is_locked(buffer) and not buffer.any()
    chunk = buffer[512:1536].view(torch.float32).view(2, 128)
    chunk.fill_(3)
    assert pinning.is_locked(chunk) and buffer.sum() > 0
    del buffer, chunk
    free(ptr)
    assert pinning.find(ptr) is None


class Handle:
    """An aio_handle that writes and reads whole files."""

    def sync_pwrite(self, buffer: Any, filename: str) -> int:
        Path(filename).write_bytes(buffer.numpy().tobytes())
        return 1

    def sync_pread(self, buffer: Any, filename: str) -> int:
        buffer.copy_(torch.frombuffer(bytearray(Path(filename).read_bytes()), dtype=buffer.dtype))
        return 1


def test_deepspeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    accelerator = SimpleNamespace(pin_memory=None, is_pinned=None, unpin_memory=None)
    library = {"deepspeed": {}, "deepspeed.accelerator": {"get_accelerator": lambda: accelerator}}
    names = run(monkeypatch, "deepspeed.md", library)

    # An offloaded optimizer pins a partition, and views of it.
    partition = torch.zeros(10_000)
    pinned = accelerator.pin_memory(partition, align_bytes=1)
    assert pinned.data_ptr() == partition.data_ptr()
    assert accelerator.is_pinned(pinned) and accelerator.is_pinned(partition.narrow(0, 500, 100))
    at = partition.data_ptr()
    accelerator.unpin_memory(pinned)
    assert not accelerator.is_pinned(partition)
    accelerator.unpin_memory(pinned)
    assert accelerator.pin_memory(partition.view(100, 100), make_copy=False, match_shape=False).shape == (10_000,)
    del partition, pinned
    soon_nothing_is_locked(at)

    # Tensors are swapped to files and back through the handle's buffers.
    handle = names["LockedTensors"](Handle())
    buffer = handle.new_cpu_locked_tensor(1000, torch.empty(0, dtype=torch.float16))
    assert buffer.shape == (1000,) and buffer.dtype == torch.float16 and buffer.data_ptr() % 4096 == 0
    assert accelerator.is_pinned(buffer)
    buffer.fill_(7)
    assert handle.sync_pwrite(buffer, str(tmp_path / "swapped")) == 1
    buffer.zero_()
    assert handle.sync_pread(buffer, str(tmp_path / "swapped")) == 1
    assert buffer.eq(7).all()
    assert handle.free_cpu_locked_tensor(buffer)
    assert not handle.free_cpu_locked_tensor(torch.empty(3))

# SPDX-License-Identifier: Apache-2.0
"""Files to a real GPU and back: the tests for copies on any device, and torch tensors in torch's own memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import pinning
from file_copies import *  # noqa: F403
from file_copies import descriptors_of, evict
from noise import noise
from pinning.files import shard


@pytest.fixture
def queue(queue: pinning.Queue) -> Iterator[pinning.Queue]:
    yield queue
    queue.close()
    pinning.copies.trim_staging()


def some_arrays(count: int) -> dict[str, numpy.ndarray]:
    """Arrays of 0 bytes to 3 MiB, most of them unaligned in a file."""
    draw = numpy.random.default_rng(count)
    sizes = [0, 1, 2, 3, *draw.integers(1, 3 << 20, count).tolist()]
    return {f"{i}.{size}": noise(size, i) for i, size in enumerate(sizes)}


@pytest.mark.parametrize("cold", [False, True])
def test_there_and_back(queue: pinning.Queue, tmp_path: Path, cold: bool) -> None:
    arrays = some_arrays(100)
    path = tmp_path / "a.safetensors"
    pinning.save_file(arrays, path)
    if cold:
        evict(path)
    found = pinning.load_file(path, queue.device, queue, framework="pinning")
    for name, array in arrays.items():
        assert (found[name].copy_to_host() == array).all()
    pinning.save_file(found, tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()


def test_tensors_of_torch(queue: pinning.Queue, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    if not torch.cuda.is_available():
        pytest.skip(f"needs a PyTorch with CUDA; this is {torch.__version__}")
    host = {
        "bf16": torch.randn(1024, 1024).to(torch.bfloat16),
        "f8": torch.randn(1 << 20).to(torch.float8_e5m2),
        "odd": torch.arange(7, dtype=torch.uint8),
        "f32": torch.randn(3000, 1000),
        "scalar": torch.tensor(2.5),
        "none": torch.empty(3, 0),
    }
    tensors = {name: tensor.to("cuda") for name, tensor in host.items()}
    tensors["f32"] = tensors["f32"] + 0  # may not be computed yet
    pinning.save_file(tensors, tmp_path / "a")
    pinning.save_file(host, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    before = torch.cuda.memory_allocated()
    found = pinning.load_file(tmp_path / "a", "cuda")
    assert torch.cuda.memory_allocated() > before
    for name, tensor in host.items():
        assert found[name].device == torch.device("cuda:0")
        assert found[name].dtype == tensor.dtype
        assert found[name].data_ptr() % 16 == 0
        assert found[name].cpu().flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8))
    del found
    assert torch.cuda.memory_allocated() == before
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(pinning.FileFormatError):
        pinning.load_file(tmp_path / "b", "cuda")
    assert torch.cuda.memory_allocated() == before
    assert descriptors_of(tmp_path / "a") == 0


def test_torch_goes_on_with_its_memory(queue: pinning.Queue, tmp_path: Path) -> None:
    """A load into memory that torch has just freed, while its stream still writes there."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    if not torch.cuda.is_available():
        pytest.skip(f"needs a PyTorch with CUDA; this is {torch.__version__}")
    size = 64 << 20
    array = noise(size)
    pinning.save_file({"a": array}, tmp_path / "a")
    for _ in range(5):
        busy = torch.empty(size, dtype=torch.uint8, device="cuda")
        for value in range(200):
            busy.fill_(value)
        del busy
        found = pinning.load_file(tmp_path / "a", "cuda")
        assert (found["a"].cpu().numpy() == array).all()
        del found


def test_saves_in_the_background(queue: pinning.Queue, tmp_path: Path) -> None:
    """Writes to tensors after the call do not reach the file, whether or not all of them fit in the arena."""
    host = some_arrays(40)
    pinning.save_file(host, tmp_path / "a")
    for room in (256 << 20, 5 << 20):
        with pinning.Arena(room, queue.device) as arena:
            for _ in range(2):
                found = pinning.load_file(tmp_path / "a", queue.device, queue, framework="pinning")
                saved = pinning.save_file_async(found, tmp_path / "b", arena=arena)
                for array in found.values():
                    array[...] = 0
                saved.wait()
                assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_slices_for_all_gpus(queue: pinning.Queue, tmp_path: Path) -> None:
    names = [device.name for device in pinning.devices() if device.vendor == "cuda"]
    whole = {"a": noise(24 << 20).reshape(-1, 96), "b": noise(9 << 20, 1), "c": noise(777, 2)}
    pinning.save_file(whole, tmp_path / "a")
    for dim in (0, 1):
        plans = {
            name: {"a": shard(dim, rank, len(names), "last"), "b": ..., "c": ...} for rank, name in enumerate(names)
        }
        found = pinning.load_file(tmp_path / "a", plans, framework="pinning")
        parts = [found[name]["a"].copy_to_host() for name in names]
        assert (numpy.concatenate(parts, axis=dim) == whole["a"]).all()
        for name in names:
            assert (found[name]["b"].copy_to_host() == whole["b"]).all()
            assert (found[name]["c"].copy_to_host() == whole["c"]).all()

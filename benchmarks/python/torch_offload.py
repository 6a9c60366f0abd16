# SPDX-License-Identifier: Apache-2.0
"""Times of `pinning.torch` and of plain torch: pinning a model, moving it, running one that does not fit.

python torch_offload.py [--gib 8] [--layers 24]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import torch

import pinning
import pinning.torch

GIB = 1 << 30


def model_of(gib: float, layers: int) -> torch.nn.Module:
    """Layers like those of a transformer, without attention: of two matrices each, bf16, already written."""
    width = int((gib * GIB / layers / 2 / 8) ** 0.5) // 256 * 256
    return torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
            for _ in range(layers)
        )
    )


def seconds(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--gib", type=float, default=8)
    arguments.add_argument("--layers", type=int, default=24)
    given = arguments.parse_args()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = model_of(given.gib, given.layers)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(0.001)
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    model.requires_grad_(False).eval()
    figures: dict[str, Any] = {"GiB": size / GIB, "layers": given.layers, "GPU": torch.cuda.get_device_name()}
    torch.empty(1, device="cuda")
    pinning.copy(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"), torch.ones(1 << 28, dtype=torch.uint8))
    torch.cuda.empty_cache()

    peak = memory()
    held: list[pinning.torch.Pin] = []
    figures["pin, ms a GiB"] = 1e3 * seconds(lambda: held.append(pinning.torch.pin(model))) / (size / GIB)
    figures["pin, more memory, GiB"] = memory() - peak
    home = [each.data for each in model.parameters()]

    def back() -> None:
        for each, data in zip(model.parameters(), home, strict=True):
            each.data = data
        torch.cuda.empty_cache()

    for name, move in (
        ("pinned, torch's to", lambda: model.to("cuda", non_blocking=True)),
        ("pinned, pinning.torch.to", lambda: pinning.torch.to(model)),
    ):
        figures[f"{name}, GB/s"] = [size / 1e9 / (seconds(move), back())[0] for _ in range(3)]
    held[0].unpin()
    for name, move in (
        ("pageable, torch's to", lambda: model.to("cuda", non_blocking=True)),
        ("pageable, pinning.torch.to", lambda: pinning.torch.to(model)),
    ):
        figures[f"{name}, GB/s"] = [size / 1e9 / (seconds(move), back())[0] for _ in range(3)]
    sample = next(model.parameters()).data
    figures["pin_memory(), ms a GiB"] = 1e3 * seconds(sample.pin_memory) / (sample.nbytes / GIB)

    data = torch.ones(64, model[0][0].in_features, device="cuda")
    model.to("cuda")
    model(data)
    figures["all on the GPU, ms a pass"] = 1e3 * seconds(lambda: [model(data) for _ in range(5)]) / 5
    back()
    with pinning.torch.offload(model, resident=size // 4) as streamed:
        streamed(data)
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        passed = seconds(lambda: [streamed(data) for _ in range(5)]) / 5
        figures["offload, 25 % resident, ms a pass"] = 1e3 * passed
        figures["offload, 25 % resident, GB/s of weights"] = size / 1e9 / passed
        figures["offload, peak of the GPU, of the weights"] = torch.cuda.max_memory_allocated() / size
        figures["offload, start of the GPU, of the weights"] = base / size
    back()

    # Group offload as in other libraries: one stream, a layer ahead, from pinned memory (fast, memory doubled).
    layers = list(model)
    pinned = [[each.data.pin_memory() for each in layer.parameters()] for layer in layers]
    side = torch.cuda.Stream()

    def fetch(i: int) -> list[torch.Tensor]:
        with torch.cuda.stream(side):
            return [each.to("cuda", non_blocking=True) for each in pinned[i]]

    def group() -> None:
        found, ahead = data, fetch(0)
        for i, layer in enumerate(layers):
            torch.cuda.current_stream().wait_stream(side)
            here, ahead = ahead, fetch((i + 1) % len(layers))
            for parameter, there in zip(layer.parameters(), here, strict=True):
                there.record_stream(torch.cuda.current_stream())
                parameter.data = there
            found = layer(found)

    group()
    figures["group offload by torch, pinned copies, ms a pass"] = 1e3 * seconds(lambda: [group() for _ in range(5)]) / 5
    figures["peak of the process, GiB"] = memory()
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

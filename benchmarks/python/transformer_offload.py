# SPDX-License-Identifier: Apache-2.0
"""A transformer that streams through a GPU: `pinning.torch.offload`, diffusers, accelerate, each in a fresh process.

python transformer_offload.py [--gib 22.4] [--passes 5] [--contenders "ours, 25 %" "accelerate, 25 %" ...]

Random weights, bf16: 60 blocks of attention and MLP, 12 billion parameters, as in the image models that are offloaded;
a pass has 4096 tokens. For each way: seconds to prepare and per pass; peak memory of the GPU, of the process besides
the weights, and of the machine since the start. All must give the same result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30
LONGEST = 60  # seconds of one contender


def model_of(gib: float, width: int) -> Any:
    """The model in host memory, written by all threads, with the same weights each time."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            batch, count, _ = tokens.shape
            qkv = self.qkv(self.before(tokens)).view(batch, count, 3, width // 128, 128).permute(2, 0, 3, 1, 4)
            found = nn.functional.scaled_dot_product_attention(*qkv)
            tokens = tokens + self.out(found.transpose(1, 2).reshape(batch, count, width))
            return tokens + self.mlp(self.between(tokens))  # type: ignore[no-any-return]

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(width, width)
            self.blocks = nn.ModuleList(Block() for _ in range(round(gib * GIB / (24 * width**2))))
            self.last = nn.Linear(width, width)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            tokens = self.first(tokens)
            for block in self.blocks:
                tokens = block(tokens)
            return self.last(tokens)  # type: ignore[no-any-return]

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Transformer()
    model.to_empty(device="cpu").requires_grad_(False).eval()
    noise = torch.randn(1 << 24, generator=torch.Generator().manual_seed(1), dtype=torch.float32).bfloat16()
    for i, each in enumerate(model.parameters()):
        flat = each.view(-1)
        for start in range(0, len(flat), len(noise) // 2):  # each begins at another offset of the noise
            part = flat[start : start + len(noise) // 2]
            part.copy_(noise[(i * 4099) % (len(noise) // 2) :][: len(part)])
        flat.mul_(1 / math.sqrt(width) if each.dim() > 1 else 0.1)
    return model


# ---- the ways: each prepares the model and returns what is called ----


def on_the_gpu(model: Any, device: str) -> Any:
    return model.to(device)


def ours(share: float) -> Callable[[Any, str], Any]:
    def prepare(model: Any, device: str) -> Any:
        import pinning.torch

        size = sum(each.nbytes for each in model.parameters())
        return pinning.torch.offload(model, device, resident=int(size * share)).module

    return prepare


def diffusers(**options: Any) -> Callable[[Any, str], Any]:
    def prepare(model: Any, device: str) -> Any:
        from diffusers.hooks import apply_group_offloading

        apply_group_offloading(model, onload_device=device, offload_device="cpu", **options)
        return model

    return prepare


def accelerate_part(share: float) -> Callable[[Any, str], Any]:
    def prepare(model: Any, device: str) -> Any:
        from accelerate import dispatch_model

        there = round(len(model.blocks) * share)
        places: dict[str, int | str] = {f"blocks.{i}": 0 if i < there else "cpu" for i in range(len(model.blocks))}
        return dispatch_model(model, {"first": 0, **places, "last": 0}, main_device=0)

    return prepare


def accelerate_all(model: Any, device: str) -> Any:
    from accelerate import cpu_offload

    return cpu_offload(model, execution_device=device)


STREAMS: dict[str, Any] = {"use_stream": True, "record_stream": True}
BLOCKS: dict[str, Any] = {"offload_type": "block_level", "num_blocks_per_group": 1}
LOW: dict[str, Any] = {"low_cpu_mem_usage": True}
WAYS: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "all on the GPU": (on_the_gpu, "torch"),
    "ours, 25 %": (ours(0.25), "pinning"),
    "ours, 8 %": (ours(0.08), "pinning"),
    "diffusers, blocks, streams": (diffusers(**BLOCKS, **STREAMS), "diffusers.hooks"),
    "diffusers, blocks, streams, low memory": (diffusers(**BLOCKS, **STREAMS, **LOW), "diffusers.hooks"),
    "diffusers, leaves, streams": (diffusers(offload_type="leaf_level", **STREAMS), "diffusers.hooks"),
    "diffusers, blocks": (diffusers(**BLOCKS), "diffusers.hooks"),
    "accelerate, 25 %": (accelerate_part(0.25), "accelerate"),
    "accelerate, 0 %": (accelerate_all, "accelerate"),
}
USUAL = [
    "all on the GPU",
    "ours, 25 %",
    "ours, 8 %",
    "diffusers, blocks, streams",
    "diffusers, blocks, streams, low memory",
    "accelerate, 25 %",
]


# ---- one process ----


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def measure(way: str, given: argparse.Namespace) -> None:
    prepare, module = WAYS[way]
    try:
        __import__(module)
        import torch
    except ImportError as error:
        say(missing=str(error))
        return
    on_gpu = given.device.startswith("cuda")
    if on_gpu:
        torch.zeros(1, device=given.device)
    model = model_of(given.gib, given.width)
    size = sum(each.nbytes for each in model.parameters())
    tokens = torch.randn(1, given.tokens, given.width, generator=torch.Generator().manual_seed(2), dtype=torch.float32)
    tokens = tokens.bfloat16().to(given.device)

    def seconds(work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    made: list[Any] = []
    say(weights=size / GIB, prepare=seconds(lambda: made.append(prepare(model, given.device))))
    say(peak_preparing=(status("VmHWM") - before) / GIB)
    with torch.no_grad():
        for _ in range(given.passes):
            found: list[torch.Tensor] = []
            say(seconds=seconds(lambda into=found: into.append(made[0](tokens))))  # type: ignore[misc]
    say(
        peak=(status("VmHWM") - before) / GIB,
        gpu=torch.cuda.max_memory_allocated() / GIB if on_gpu else 0,
        gpu_reserved=torch.cuda.max_memory_reserved() / GIB if on_gpu else 0,
        result=[round(float(each), 4) for each in (found[0].float().std(), found[0].float()[0, 0, 0])],
    )


# ---- all of them ----


def given_out() -> int:
    """Bytes of the machine that are not available now."""
    lines = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["MemTotal:"]) - int(lines["MemAvailable:"])) << 10


def in_a_process(way: str, arguments: list[str]) -> dict[str, Any]:
    before = most = given_out()
    begin = time.monotonic()
    command, pipe = [sys.executable, __file__, *arguments, "--child", way], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as child:
        ended = None
        while ended is None and time.monotonic() - begin < LONGEST:
            with contextlib.suppress(subprocess.TimeoutExpired):
                ended = child.wait(0.05)
            most = max(most, given_out())
        if ended is None:
            child.kill()
        said, errors = child.communicate()
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    row: dict[str, Any] = {"row": "transformer_offload", "contender": way, "passes": []}
    for line in lines:
        if "seconds" in line:
            row["passes"].append(round(line.pop("seconds"), 3))
        row.update({name: round(value, 3) if isinstance(value, float) else value for name, value in line.items()})
    row["machine"] = round((most - before) / GIB, 3)
    row["process"] = round(time.monotonic() - begin, 1)
    if ended is None:
        row["ended"] = f"after {LONGEST} s"
    elif ended:
        row["ended"] = (errors.strip().splitlines() or [f"status {ended}"])[-1]
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=22.4)
    parser.add_argument("--width", type=int, default=4096, help="a multiple of 128")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--contenders", nargs="+", default=USUAL, choices=list(WAYS))
    parser.add_argument("--child", choices=list(WAYS))
    given = parser.parse_args()
    if given.child:
        measure(given.child, given)
        return
    names = ("gib", "width", "tokens", "passes", "device")
    arguments = [text for name in names for text in (f"--{name}", str(getattr(given, name)))]
    results = {}
    for way in given.contenders:
        row = in_a_process(way, arguments)
        print(json.dumps(row), flush=True)
        if "result" in row:
            results[way] = row["result"]
    if len({round(std, 2) for std, _ in results.values()}) > 1:
        sys.exit(f"not all have the same result: {results}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A module that leaves the GPU and comes back: `park` and `wake`, over its own link and over all that are idle.

``parking.py [GIB]``: GB/s of each of three rounds. Needs torch and a GPU; with two GPUs, both links are used.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import torch

from pinning.torch import park, wake


def main() -> None:
    gib = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    layers = [torch.nn.Linear(8192, 8192, bias=True, device="cuda", dtype=torch.bfloat16) for _ in range(8 * gib)]
    model = torch.nn.Sequential(*layers)
    size = sum(each.nbytes for each in model.parameters())
    before = [each.sum().item() for each in model.parameters()]
    for links in ("own", "idle"):
        for _ in range(3):
            times = [time.perf_counter()]
            park(model, links=links)  # type: ignore[arg-type]
            times.append(time.perf_counter())
            free = torch.cuda.mem_get_info()[0]
            wake(model, links=links)  # type: ignore[arg-type]
            times.append(time.perf_counter())
            out, back = (size / (end - begin) / 1e9 for begin, end in pairwise(times))
            print(f"{links:4}  out {out:6.1f}  in {back:6.1f} GB/s, {free / 1e9:.0f} GB free while parked", flush=True)
    assert [each.sum().item() for each in model.parameters()] == before


if __name__ == "__main__":
    main()

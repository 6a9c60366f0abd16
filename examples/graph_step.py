# SPDX-License-Identifier: Apache-2.0
"""An inference step as a CUDA graph that reads its input from locked host memory and writes its output there.

Needs an NVIDIA GPU and PyTorch.
"""

from __future__ import annotations

import numpy
import torch

import pinning

BATCH, WIDTH = 64, 1024

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH)).cuda().eval()
host_input = numpy.zeros((BATCH, WIDTH), numpy.float32)
host_output = numpy.zeros((BATCH, WIDTH), numpy.float32)
device_input = torch.zeros(BATCH, WIDTH, device="cuda")
stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

with torch.inference_mode(), torch.cuda.stream(stream):
    model(device_input)  # libraries set themselves up at the first call, which cannot be captured
stream.synchronize()

with pinning.lock(host_input, device="cuda:0"), pinning.lock(host_output, device="cuda:0"):
    with torch.inference_mode(), torch.cuda.graph(graph, stream=stream):
        pinning.copy_async(device_input, host_input, queue=stream)
        pinning.copy_async(host_output, model(device_input), queue=stream)

    for step in range(3):
        host_input[:] = numpy.random.default_rng(step).standard_normal((BATCH, WIDTH), numpy.float32)
        graph.replay()
        torch.cuda.synchronize()
        with torch.inference_mode():
            expected = model(torch.from_numpy(host_input).cuda()).cpu().numpy()
        print(f"step {step}: largest difference {numpy.abs(host_output - expected).max():.1e}")
        assert numpy.allclose(host_output, expected, atol=1e-5)

# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: ours as safetensors.torch.load_file and safetensors.numpy.load_file, or as their save_file."""

from __future__ import annotations

import os
from typing import Any

import safetensors.numpy
import safetensors.torch

import pinning


def load_torch(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, Any]:
    return pinning.load_file(filename, f"cuda:{device}" if isinstance(device, int) else device, framework="torch")


def load_numpy(filename: Any, **options: Any) -> dict[str, Any]:
    return pinning.load_file(filename, "host", framework="numpy")


if os.environ["PEER_SUITES_WAY"] == "load_file":
    safetensors.torch.load_file = load_torch
    safetensors.numpy.load_file = load_numpy
else:
    safetensors.torch.save_file = pinning.save_file
    safetensors.numpy.save_file = pinning.save_file

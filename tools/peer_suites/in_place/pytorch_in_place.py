# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: what PyTorch's tests import of another release's helpers, and is absent, is a mock."""

import importlib
import unittest.mock


def absent(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return unittest.mock.MagicMock()


for each in ("cuda", "device_type", "fsdp", "mkldnn", "optimizers", "utils"):
    vars(importlib.import_module(f"torch.testing._internal.common_{each}"))["__getattr__"] = absent

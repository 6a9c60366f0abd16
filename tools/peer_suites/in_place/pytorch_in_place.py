# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: what PyTorch's tests import of another release's helpers, and is absent, is a mock."""

import importlib
import unittest.mock

for each in ("cuda", "device_type", "mkldnn", "optimizers", "utils"):
    module = importlib.import_module(f"torch.testing._internal.common_{each}")

    def absent(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return unittest.mock.MagicMock()

    setattr(module, "__getattr__", absent)  # noqa: B010

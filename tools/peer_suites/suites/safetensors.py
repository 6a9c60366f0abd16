# SPDX-License-Identifier: Apache-2.0
"""safetensors: the tests of its Python package, with our load_file and save_file for torch and NumPy."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import pytest
from results import Result

WAYS = ["load_file", "save_file"]
_ERRORS = "refused as there, by another class of error: TypeError, LayoutError"
EXPLAINED = {
    "test_cannot_serialize_shared|test_bogus|test_meta_tensor|test_sparse|TorchModelTestCase.test_failure": _ERRORS
}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    plugin = None if way == "bare" else "safetensors_in_place"
    return pytest(checkout / "bindings" / "python", work, way, only, "tests", plugin=plugin)

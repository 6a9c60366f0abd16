# SPDX-License-Identifier: Apache-2.0
"""The driver's functions that native/tool/cuda/entry.hpp replaces, against the driver's header."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from folders import ROOT
from standins import abi, libcuda
from standins.standin import MissingError

OWN = ROOT / "native/tool/cuda"


def test_functions_are_those_of_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = re.findall(r"^int (cu\w+)\(", (OWN / "entry.hpp").read_text(), re.MULTILINE)
    assert len(names) == 26
    assert sorted(names) == sorted(re.findall(r"SYMBOL\((cu\w+),", (OWN / "symbols.hpp").read_text()))
    first_versions = ("_ptds", "_ptsz", "Address", "BatchAsync")  # and forms that the header does not declare
    declared = [name for name in names if not name.endswith(first_versions)]
    try:
        (folder,) = libcuda.includes()
    except MissingError as error:
        pytest.skip(str(error))
    header = (folder / "cuda.h").read_text()
    newer = [name for name in declared if name not in header]
    (version,) = re.findall(r"#define CUDA_VERSION (\d+)", header)
    assert newer == [] or (int(version) < 13020 and {"cuMemcpyWithAttributesAsync"}.issuperset(newer))
    declared = [name for name in declared if name not in newer]
    # Ours are renamed in this program.
    ours = "\n".join([*(f"#define {name} our_{name}" for name in declared), f'#include "{OWN / "entry.hpp"}"'])
    ours += "\n" + "\n".join(f"#undef {name}" for name in declared)
    checks = "\n".join(
        f"static_assert(same_function<decltype(&::{name}), decltype(&::our_{name})>);" for name in declared
    )
    program = abi.PROGRAM.replace('#include "@ABI@"', "").replace("@HEADERS@", f"{ours}\n#include <cuda.h>")
    monkeypatch.setattr(abi, "PROGRAM", program.replace("@LISTS@", checks))
    abi.check(libcuda.DRIVER, "cuda", [], [], tmp_path)

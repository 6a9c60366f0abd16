# SPDX-License-Identifier: Apache-2.0
"""Find the region of memory that holds an address: in nanoseconds, without locks, among any number of regions.

The table knows addresses only, not devices, pinning or the lifetimes of objects. C++ programs include
``<pagetable/page_table.hpp>``; Cython code uses ``cimport pagetable``; see ``python -m pagetable --help``.
"""

from pathlib import Path

from pagetable.errors import AbsentError, OverlapError, RangeError

try:
    from pagetable.table import PageTable, Region
except ModuleNotFoundError as error:
    if error.name != "pagetable.table":
        raise
    raise ImportError(
        f"{Path(__file__).parent.parent} is a source tree, which has no native modules: run `pip install .`, "
        "and start Python in another folder, or with -P (PYTHONSAFEPATH=1)"
    ) from None

__all__ = ["AbsentError", "OverlapError", "PageTable", "RangeError", "Region", "cmake_dir", "include_dir"]


def include_dir() -> Path:
    """The folder to give a C++ compiler for ``<pagetable/page_table.hpp>``."""
    return Path(__file__).parent / "include"


def cmake_dir() -> Path:
    """The folder to give CMake's ``find_package(pagetable)`` as ``pagetable_DIR``."""
    return Path(__file__).parent / "cmake"

# SPDX-License-Identifier: Apache-2.0
"""Where the headers and the library are, for programs that are compiled against them."""

from __future__ import annotations

from pathlib import Path

from pagetable import include_dir
from pinning.map import pinned_map

__all__ = ["cmake_dir", "include_dirs", "library_dirs", "pkgconfig_dir"]


def _installed() -> Path:
    """The folder that contains the native modules and everything else that is built."""
    return Path(pinned_map.__file__).parents[1]


def include_dirs() -> list[Path]:
    """The folders to give a compiler for ``<pinning/pinned_map.hpp>`` in C++ and ``<pinning/pinning.h>`` in C."""
    return [_installed() / "include", include_dir()]


def library_dirs() -> list[Path]:
    """The folder to give a linker for ``-lpinning``, and to put into a program's run path."""
    return [_installed() / "lib"]


def cmake_dir() -> Path:
    """The folder to give CMake's ``find_package(pinning)`` as ``pinning_DIR``."""
    return library_dirs()[0] / "cmake" / "pinning"


def pkgconfig_dir() -> Path:
    """The folder to put into ``PKG_CONFIG_PATH``, for ``pkg-config --cflags --libs pinning``."""
    return library_dirs()[0] / "pkgconfig"

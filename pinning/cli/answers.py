# SPDX-License-Identifier: Apache-2.0
"""What builds ask for, which needs no extra."""

from collections.abc import Callable

import pinning

ANSWERS: dict[str, Callable[[], object]] = {
    "--version": lambda: f"pinning {pinning.__version__}",
    "--cmake-dir": pinning.cmake_dir,
    "--pkgconfig-dir": pinning.pkgconfig_dir,
}

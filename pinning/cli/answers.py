# SPDX-License-Identifier: Apache-2.0
"""Options for builds, which work without the ``cli`` extra."""

from collections.abc import Callable

import pinning

ANSWERS: dict[str, Callable[[], object]] = {
    "--version": lambda: f"pinning {pinning.__version__}",
    "--cmake-dir": pinning.cmake_dir,
    "--pkgconfig-dir": pinning.pkgconfig_dir,
}

# SPDX-License-Identifier: Apache-2.0
"""Options for builds, which work without the ``cli`` extra."""

from __future__ import annotations

from collections.abc import Callable


def _version() -> object:
    from importlib.metadata import version

    return f"pinning {version('pinning')}"


def _cmake_dir() -> object:
    import pinning

    return pinning.build.cmake_dir()


def _pkgconfig_dir() -> object:
    import pinning

    return pinning.build.pkgconfig_dir()


ANSWERS: dict[str, Callable[[], object]] = {
    "--version": _version,
    "--cmake-dir": _cmake_dir,
    "--pkgconfig-dir": _pkgconfig_dir,
}

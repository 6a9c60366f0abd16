# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the installed packages although they work."""

from __future__ import annotations

import importlib.metadata


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def release_with_gil() -> str | None:
    """The version of a hip-python that keeps Python's GIL during each call; None where it releases it."""
    release = installed("hip-python")
    return release if release and int(release.split(".")[0]) < 10 else None


def warnings() -> list[str]:
    """What is found, each with the way out."""
    found = []
    release = release_with_gil()
    if release:
        found.append(
            f"hip-python {release} keeps Python's GIL during each call, so that all threads wait while memory is "
            "locked, and there can be no queues: pip install 'hip-python>=10', of which pinning calls only what ROCm 6 "
            "and 7 have too"
        )
    if installed("hip-python-interop"):
        found.append(
            "hip-python-interop puts its files over those of NVIDIA's package cuda, and breaks it or is broken by it; "
            "pinning does not need it: pip uninstall hip-python-interop, and install cuda-bindings anew if it is wanted"
        )
    return found

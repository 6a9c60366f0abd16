# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the installed packages although they work."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution


def warnings() -> list[str]:
    """What is found, each with the way out."""
    try:
        distribution("hip-python-interop")
    except PackageNotFoundError:
        return []
    return [
        "hip-python-interop puts its files over those of NVIDIA's package cuda, and breaks it or is broken by it; "
        "pinning does not need it: pip uninstall hip-python-interop, and install cuda-bindings anew if it is wanted"
    ]

# SPDX-License-Identifier: Apache-2.0
"""Settings in environment variables; docs/environment.md lists them."""

from __future__ import annotations

import os
import sys

from pinning.errors import PinningError


def chosen(name: str, words: tuple[str, ...], otherwise: str) -> str:
    """The word that a variable has as its value, in any case; `otherwise` if it is unset or empty."""
    value = os.environ.get(name) or otherwise
    if value.lower() not in words:
        known = f"{', '.join(words[:-1])} or {words[-1]}"
        raise PinningError(f"{name} is {value!r}; it must be {known}: set one of these, or unset it")
    return value.lower()


def is_switched_on(name: str) -> bool:
    """Whether a switch that is off by default is on; reports another value, in the words of native/base/setting.hpp."""
    value = os.environ.get(name, "")
    on = value.lower() in ("on", "1")
    if not on and value.lower() not in ("", "off", "0"):
        print(f"pinning: {name}={value} means nothing: give one of off, on; `off` is used", file=sys.stderr)
    return on

# SPDX-License-Identifier: Apache-2.0
"""The runtime's calling convention: a function's name and its arguments in, an exception out where it fails."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from pinning.errors import VendorError
from pinning_hsa.abi import PROTOTYPES, SUCCESS

LIBRARY = "libhsa-runtime64.so.1"


def call(function: str, *arguments: object) -> None:
    """Call the runtime's `function`, without the GIL. A device has loaded and initialised it.

    Raises
    ------
    VendorError
        The runtime's status is not success.
    """
    code = getattr(_loaded(), function)(*arguments)
    if code != SUCCESS:
        raise VendorError(function, code, _name(code))


def loaded_copies() -> list[str]:
    """The files of all HSA runtimes in this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[-1] for line in maps if "/" in line}
    return sorted(file for file in files if "libhsa-runtime64" in Path(file).name)


@cache
def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY)
    for function, arguments in PROTOTYPES.items():
        getattr(library, function).argtypes = arguments
    return library


def _name(code: int) -> str:
    """The runtime's own name, which it puts before a colon and a sentence, so that codes to come are known too."""
    text = ctypes.c_char_p()
    if _loaded().hsa_status_string(code, ctypes.byref(text)) != SUCCESS or not text.value:
        return "unknown"
    return text.value.decode().partition(":")[0]

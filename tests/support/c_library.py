# SPDX-License-Identifier: Apache-2.0
"""The C library, with prototypes of what tests call to map, protect, discard, move and unmap memory."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_long, c_size_t, c_void_p
from typing import Any

_PROTOTYPES: dict[str, tuple[Any, ...]] = {  # the type of the result, and those of the arguments
    "mmap": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_long),
    "munmap": (c_int, c_void_p, c_size_t),
    "mprotect": (c_int, c_void_p, c_size_t, c_int),
    "madvise": (c_int, c_void_p, c_size_t, c_int),
    "mincore": (c_int, c_void_p, c_size_t, c_char_p),
    "mremap": (c_void_p, c_void_p, c_size_t, c_size_t, c_int),
    "malloc": (c_void_p, c_size_t),
    "realloc": (c_void_p, c_void_p, c_size_t),
    "free": (None, c_void_p),
}


def c_library(name: str | None = None) -> ctypes.CDLL:
    """The functions that this process finds first, or those of a library."""
    library = ctypes.CDLL(name, use_errno=True)
    for function, (result, *arguments) in _PROTOTYPES.items():
        getattr(library, function).restype, getattr(library, function).argtypes = result, arguments
    return library


libc = c_library()

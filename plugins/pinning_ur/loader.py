# SPDX-License-Identifier: Apache-2.0
"""The loader of Unified Runtime, libur_loader.so.0: found, so that native code has it, and asked about devices."""

from __future__ import annotations

import ctypes
import os
import site
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pinning.errors import PluginUnavailableError, VendorError
from pinning_ur import release

SONAME = "libur_loader.so.0"
INSTALL = "pip install 'pinning[ur]', or intel-cmplr-lib-ur and intel-cmplr-lib-rt"

_Value = TypeVar("_Value")

_functions: dict[str, Callable[..., int]] = {}
_process = 0  # the one that loaded it


def load() -> None:
    """Load the loader. Native code finds it by its name then, and initialises it.

    Raises
    ------
    PluginUnavailableError
        It is missing, and how to get it; or this process is a fork of one that uses Unified Runtime.
    """
    global _functions, _process
    refuse_fork()
    if not _process:
        _functions = release.declare(_load())
        _process = os.getpid()


def exports(function: str) -> bool:
    """Whether this release of the loader has `function`."""
    return function in _functions


def call(function: str, *arguments: object) -> None:
    """Call `function` of the loader, which a device has initialised, without the GIL, as ctypes does.

    Raises
    ------
    VendorError
        Its result is not success.
    PluginUnavailableError
        This process is a fork of the one that initialised the loader.
    """
    refuse_fork()
    code = _functions[function](*arguments)
    if code != 0:
        raise VendorError(function, code, _result_name(code))


def listed(function: str, *arguments: object) -> list[int]:
    """The handles that `function` lists through its last three arguments."""
    count = ctypes.c_uint32()
    call(function, *arguments, 0, None, ctypes.byref(count))
    handles = (ctypes.c_void_p * count.value)()
    if count.value:
        call(function, *arguments, count.value, handles, None)
    return [handle for handle in handles if handle]


def asked(kind: Callable[[], _Value], function: str, *arguments: object) -> _Value:
    """What `function` tells of a property, as a ctypes `kind`, through its last three arguments."""
    value: Any = kind()
    call(function, *arguments, ctypes.sizeof(value), ctypes.byref(value), None)
    told: _Value = value
    return told


def refuse_fork() -> None:
    """Raise PluginUnavailableError in a fork of the process that loaded it."""
    if _process not in (0, os.getpid()):
        raise PluginUnavailableError(
            f"process {os.getpid()} is a fork of process {_process}, which uses Unified Runtime, so that does not work "
            "in it: start it with multiprocessing's 'spawn' method, or fork before the first use"
        )


def _load() -> ctypes.CDLL:
    # First by name: that finds the one on the library path, or the one that another library has loaded already.
    installed = [Path(prefix) / "lib" / SONAME for prefix in (sys.prefix, site.getuserbase())]
    reason = ""
    for place in (SONAME, *(str(path) for path in installed if path.exists())):
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            reason = str(error)  # itself it would keep alive what all callers have, until the collector comes
    raise PluginUnavailableError(f"{SONAME}, the loader of Unified Runtime, cannot be loaded ({reason}): {INSTALL}")


def _result_name(code: int) -> str:
    text = ctypes.create_string_buffer(128)
    _functions["urPrintResult"](code, text, len(text), None)
    return text.value.decode()

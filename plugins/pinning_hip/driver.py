# SPDX-License-Identifier: Apache-2.0
"""The runtime's calling convention: a function's name and its arguments in, its results or an exception out."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

from pinning.errors import PluginUnavailableError, VendorError

LIBRARY = "libamdhip64.so"  # as hip-python loads it: without a version

PEER_ACCESS_ALREADY_ENABLED = 704

_KFD = Path("/dev/kfd")

_bindings: Any = None
_process = 0  # the one that called hipInit


def load() -> None:
    """Import hip-python, which loads the runtime at the first call.

    Raises
    ------
    PluginUnavailableError
        It is missing, or this process is a fork of one that uses HIP.
    """
    global _bindings
    _refuse_fork()
    try:
        _bindings = importlib.import_module("hip").hip
    except (ImportError, AttributeError) as error:  # of its releases until 7, `hip` imports without what it cannot load
        raise PluginUnavailableError(
            f"the Python package hip-python cannot be imported ({error}): pip install 'pinning[hip]'"
        ) from error


def initialise() -> int:
    """Load the runtime, call ``hipInit``, which may be repeated, and return the number of GPUs, at least 1.

    Raises
    ------
    PluginUnavailableError
        What is missing, and how to get it.
    """
    global _process
    load()
    try:
        call("hipInit", 0)
        (count,) = call("hipGetDeviceCount")
    except VendorError as error:
        raise PluginUnavailableError(
            f"the HIP runtime finds no AMD GPU: {error.call} gives {error.name} ({error.code}); {_what_hides_gpus()}"
        ) from error
    _process = os.getpid()
    return int(count)


def call(function: str, *arguments: object) -> tuple[Any, ...]:
    """Call the runtime's `function` and return what it gives besides its code.

    It is for what is quick: before release 10 the bindings keep the GIL for as long as the runtime takes.

    Raises
    ------
    VendorError
        The runtime's code is not success.
    PluginUnavailableError
        The runtime cannot be loaded or lacks the function, or this process is a fork of the one that initialised HIP.
    """
    _refuse_fork()
    try:
        code, *results = getattr(_bindings, function)(*arguments)
    except RuntimeError as error:  # how the bindings say that they cannot load the library, or find no such symbol
        raise PluginUnavailableError(
            f"{LIBRARY} cannot be loaded, or has no {function} ({error}): install the HIP runtime of ROCm with its "
            "development files, which have the library's name without a version, and put its folder on "
            "LD_LIBRARY_PATH; hip-python from release 10 on looks into $ROCM_PATH/lib first"
        ) from error
    except ValueError as error:  # how their enumeration says "4242 is not a valid hipError_t"
        unknown = str(error).split()[0]
        if not unknown.isdigit():
            raise
        _forget_error()
        raise VendorError(function, int(unknown), "unknown to hip-python", "install its latest release") from None
    if code != 0:
        _forget_error()
        raise VendorError(function, int(code), code.name)
    return tuple(results)


def constant(enumeration: str, name: str) -> Any:
    """A constant of hip_runtime_api.h, as the bindings want it: they refuse plain integers."""
    return getattr(getattr(_bindings, enumeration), name)


def _forget_error() -> None:
    # Each thread's last error stays until someone asks for it, and torch asks after its next kernel.
    with contextlib.suppress(ValueError):  # it is of a code that the bindings do not know, and forgotten all the same
        _bindings.hipGetLastError()


def _what_hides_gpus() -> str:
    if not _KFD.exists():
        return f"there is no {_KFD}: load the kernel driver amdgpu, and pass a container {_KFD} and /dev/dri"
    if not os.access(_KFD, os.R_OK | os.W_OK):
        return f"this user may not open {_KFD}: add it to the groups render and video"
    return "compare `rocminfo` with the variables HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES"


def _refuse_fork() -> None:
    # The runtime's state does not survive a fork, as hipInit's documentation says.
    if _process not in (0, os.getpid()):
        raise PluginUnavailableError(
            f"process {os.getpid()} is a fork of process {_process}, which uses HIP, so HIP does not work in it: "
            "start it with multiprocessing's 'spawn' method, or fork before the first use of HIP"
        )

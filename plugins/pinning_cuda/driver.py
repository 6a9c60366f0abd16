# SPDX-License-Identifier: Apache-2.0
"""The driver's calling convention: a function's name and its arguments in, its results or an exception out."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from typing import Any

from pinning.errors import AlreadyPinnedError, PluginUnavailableError, VendorError

INVALID_VALUE = 1
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
NOT_READY = 600
PEER_ACCESS_ALREADY_ENABLED = 704
TOO_MANY_PEERS = 711
ALREADY_REGISTERED = 712

_ADVICE_ON_INIT = {
    3: "CUDA does not work in a fork of a process that uses it: start processes with the 'spawn' method",
    34: "the libcuda.so.1 found is the toolkit's stub: put the NVIDIA driver's before it on the library path",
    100: "no NVIDIA GPU is visible: compare `nvidia-smi -L` with the variable CUDA_VISIBLE_DEVICES",
    803: "the NVIDIA kernel module and libcuda.so.1 are of different versions: reboot, or install one version of both",
}

_bindings: Any = None
_process = 0  # the one that called cuInit


class Functions:
    """The functions of the driver, and the types of the bindings, by name. A fork of this process has none."""

    def __getattr__(self, name: str) -> Any:
        # Called once for each name, and for all of them again in a fork: so the calls that must be quick check nothing.
        _refuse_fork()
        found = _host_function_launcher() if name == "cuLaunchHostFunc" else getattr(_bindings, name)
        setattr(self, name, found)
        return found


def _host_function_launcher() -> Callable[[int, int, int], tuple[Any]]:
    # The function of the bindings (12.9, 13.0, 13.3) has the host function called with the GIL held, so that one which
    # waits for another thread of Python would wait for ever.
    code, address, _ = _bindings.cuGetProcAddress(b"cuLaunchHostFunc", 10000, 0)
    if code:
        raise vendor_error("cuGetProcAddress", code)
    launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)
    return lambda stream, function, argument: (_bindings.CUresult(launch(stream, function, argument)),)


functions = Functions()
os.register_at_fork(after_in_child=functions.__dict__.clear)


def initialise() -> None:
    """Load the driver and call ``cuInit``, which may be repeated.

    Raises
    ------
    PluginUnavailableError
        What is missing, and how to get it.
    """
    global _bindings, _process
    _refuse_fork()
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise PluginUnavailableError(
            f"the Python package cuda-bindings cannot be imported ({error}): pip install 'pinning[cuda]'"
        ) from error
    try:
        (code,) = bindings.cuInit(0)
    except RuntimeError as error:  # how the bindings say that they cannot load the library
        raise PluginUnavailableError(
            f"libcuda.so.1 cannot be loaded ({error}): install the NVIDIA driver, which provides it"
        ) from error
    if code != 0:
        advice = _ADVICE_ON_INIT.get(int(code), "see whether `nvidia-smi` works")
        raise PluginUnavailableError(
            f"the NVIDIA driver does not start: cuInit gives {code.name} ({int(code)}); {advice}"
        )
    _bindings, _process = bindings, os.getpid()


def call(function: str, *arguments: object) -> tuple[Any, ...]:
    """Call the driver's `function` and return what it gives besides its code.

    The bindings release the GIL for as long as the driver takes: each function of theirs is a ``with nogil:`` block
    around the C call (cuda_bindings/cuda/bindings/driver.pyx of NVIDIA/cuda-python, cuMemHostRegister among them).

    Raises
    ------
    VendorError
        The driver's code is not success.
    PluginUnavailableError
        This process is a fork of the one that initialised CUDA.
    """
    code, *results = getattr(functions, function)(*arguments)
    if code:
        raise vendor_error(function, code)
    return tuple(results)


def vendor_error(function: str, code: Any) -> VendorError:
    """What is to be raised when `function` gave this CUresult."""
    kind = AlreadyPinnedError if code == ALREADY_REGISTERED else VendorError
    return kind(function, int(code), code.name)


def constant(enumeration: str, name: str) -> Any:
    """A constant of cuda.h, as the bindings want it."""
    return getattr(getattr(functions, enumeration), name)


def _refuse_fork() -> None:
    # The driver's state does not survive a fork, and some of its calls crash there.
    if _process not in (0, os.getpid()):
        raise PluginUnavailableError(
            f"process {os.getpid()} is a fork of process {_process}, which uses CUDA, so CUDA does not work in it: "
            "start it with multiprocessing's 'spawn' method, or fork before the first use of CUDA"
        )

# SPDX-License-Identifier: Apache-2.0
"""The driver's calling convention: a function's name and its arguments in, its results or an exception out."""

from __future__ import annotations

import importlib
import os
from typing import Any

from pinning.errors import PluginUnavailableError, VendorError

PEER_ACCESS_ALREADY_ENABLED = 704
TOO_MANY_PEERS = 711

_ADVICE_ON_INIT = {
    3: "CUDA does not work in a fork of a process that uses it: start processes with the 'spawn' method",
    34: "the libcuda.so.1 found is the toolkit's stub: put the NVIDIA driver's before it on the library path",
    100: "no NVIDIA GPU is visible: compare `nvidia-smi -L` with the variable CUDA_VISIBLE_DEVICES",
    803: "the NVIDIA kernel module and libcuda.so.1 are of different versions: reboot, or install one version of both",
}

_bindings: Any = None
_process = 0  # the one that called cuInit


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

    Raises
    ------
    VendorError
        The driver's code is not success.
    PluginUnavailableError
        This process is a fork of the one that initialised CUDA.
    """
    _refuse_fork()
    code, *results = getattr(_bindings, function)(*arguments)
    if code:
        raise VendorError(function, int(code), code.name)
    return tuple(results)


def device_attribute(name: str) -> Any:
    """One of the ``CU_DEVICE_ATTRIBUTE_`` constants of cuda.h, as the bindings want it."""
    return getattr(_bindings.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")


def peer_attribute(name: str) -> Any:
    """One of the ``CU_DEVICE_P2P_ATTRIBUTE_`` constants, the same way."""
    return getattr(_bindings.CUdevice_P2PAttribute, f"CU_DEVICE_P2P_ATTRIBUTE_{name}")


def _refuse_fork() -> None:
    # The driver's state does not survive a fork, and some of its calls crash there.
    if _process not in (0, os.getpid()):
        raise PluginUnavailableError(
            f"process {os.getpid()} is a fork of process {_process}, which uses CUDA, so CUDA does not work in it: "
            "start it with multiprocessing's 'spawn' method, or fork before the first use of CUDA"
        )

# SPDX-License-Identifier: Apache-2.0
"""A copy by the GPU's engines, whose end a signal tells."""

from __future__ import annotations

import contextlib
import ctypes

from pinning.errors import VendorError
from pinning_hsa import abi
from pinning_hsa.abi import Handle
from pinning_hsa.driver import call, check, loaded

_COPYING, _DONE = 1, 0


def copy_asynchronously(dst: tuple[int, Handle], src: tuple[int, Handle], size: int) -> None:
    """Copy between addresses that GPUs reach, each with the agent that it belongs to, and wait for the end.

    Raises
    ------
    VendorError
        The runtime refused, or the copy failed under way; then the code is the signal's value.
    """
    submit = loaded().hsa_amd_memory_async_copy
    wait = loaded().hsa_signal_wait_scacquire
    signal = Handle()
    call("hsa_signal_create", _COPYING, 0, None, ctypes.byref(signal))
    code, value = abi.SUCCESS, _DONE
    try:
        try:
            code = submit(*dst, *src, size, 0, None, signal)
        finally:
            # Ctrl-C is raised here once the copy is submitted, its code lost. The bytes must not be given back to
            # anyone while the GPU is at them, so wait all the same.
            if code == abi.SUCCESS:
                value = wait(signal, abi.SIGNAL_CONDITION_LT, _COPYING, abi.FOREVER, abi.WAIT_STATE_BLOCKED)
    finally:
        with contextlib.suppress(VendorError):  # what was copied is copied
            call("hsa_signal_destroy", signal)
    check("hsa_amd_memory_async_copy", code)
    if value < _DONE:
        raise VendorError("hsa_amd_memory_async_copy", value, "the completion signal is negative")

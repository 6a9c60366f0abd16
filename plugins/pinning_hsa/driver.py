# SPDX-License-Identifier: Apache-2.0
"""The runtime's calling convention: a function's name and its arguments in, an exception out where it fails."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from pinning.errors import PluginUnavailableError, VendorError
from pinning_hsa.abi import OUT_OF_RESOURCES, PROTOTYPES, SUCCESS

LIBRARY = "libhsa-runtime64.so.1"

_library: ctypes.CDLL | None = None
_process = 0  # the one that called hsa_init


def initialise() -> None:
    """Load the runtime and call ``hsa_init``, once. The runtime is never shut down: what it locked may outlive us.

    Raises
    ------
    PluginUnavailableError
        What is missing, and how to get it.
    """
    global _library, _process
    _refuse_fork()
    if _process:
        return
    library = _load()
    code = library.hsa_init()
    if code != SUCCESS:
        raise PluginUnavailableError(
            f"the HSA runtime does not start: hsa_init gives {_name(library, code)} ({code:#x}); {_advice(code)}"
        )
    _library, _process = library, os.getpid()


def call(function: str, *arguments: object) -> None:
    """Call the runtime's `function`, without the GIL.

    Raises
    ------
    VendorError
        The runtime's status is not success.
    PluginUnavailableError
        This process is a fork of the one that initialised HSA.
    """
    check(function, getattr(loaded(), function)(*arguments))


def check(function: str, code: int) -> None:
    """Raise the VendorError of a status that `function` gave, unless that is success."""
    if code != SUCCESS:
        raise VendorError(function, code, _name(loaded(), code))


def loaded() -> ctypes.CDLL:
    """The runtime, initialised."""
    _refuse_fork()
    assert _library is not None, "devices are made once the runtime is initialised"
    return _library


def loaded_copies() -> list[str]:
    """The files of all HSA runtimes in this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[-1] for line in maps if "/" in line}
    return sorted(file for file in files if "libhsa-runtime64" in Path(file).name)


def _load() -> ctypes.CDLL:
    rocm = os.environ.get("ROCM_PATH") or "/opt/rocm"
    reasons = []
    for name in (LIBRARY, f"{rocm}/lib/{LIBRARY}"):
        try:
            library = ctypes.CDLL(name)
            for function, prototype in PROTOTYPES.items():
                entry = getattr(library, function)
                entry.restype, entry.argtypes = prototype
            return library
        except OSError as error:
            reasons.append(str(error))
        except AttributeError as error:
            raise PluginUnavailableError(f"{name} is too old ({error}): install a newer ROCm") from error
    raise PluginUnavailableError(
        f"{LIBRARY} cannot be loaded ({'; '.join(reasons)}): install ROCm's package hsa-rocr (Debian and Ubuntu: "
        "libhsa-runtime64-1), or say in ROCM_PATH where ROCm is"
    )


def _advice(code: int) -> str:
    device = Path("/dev/kfd")
    if code == OUT_OF_RESOURCES and not device.exists():
        return (
            "there is no /dev/kfd: load the kernel module amdgpu (`sudo modprobe amdgpu`); a container needs "
            "--device=/dev/kfd --device=/dev/dri"
        )
    if code == OUT_OF_RESOURCES and not os.access(device, os.R_OK | os.W_OK):
        return f"this user may not open /dev/kfd: `sudo usermod -a -G render,video {os.environ.get('USER', '$USER')}`"
    return "see whether `rocminfo` works, and `sudo dmesg | grep -i kfd`"


def _name(library: ctypes.CDLL, code: int) -> str:
    """The runtime's own name, which it puts before a colon and a sentence, so that codes to come are known too."""
    text = ctypes.c_char_p()
    if library.hsa_status_string(code, ctypes.byref(text)) != SUCCESS or not text.value:
        return "unknown"
    return text.value.decode().partition(":")[0]


def _refuse_fork() -> None:
    # The runtime's threads and its file descriptors do not survive a fork.
    if _process not in (0, os.getpid()):
        raise PluginUnavailableError(
            f"process {os.getpid()} is a fork of process {_process}, which uses HSA, so HSA does not work in it: "
            "start it with multiprocessing's 'spawn' method, or fork before the first use of HSA"
        )

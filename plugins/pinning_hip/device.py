# SPDX-License-Identifier: Apache-2.0
"""One GPU: `CoarseDevice`, `LimitedDevice` and `CopyDevice` of `pinning.plugin` on the HIP runtime."""

from __future__ import annotations

import contextlib
import ctypes
import sys

from pinning.errors import AlreadyPinnedError, VendorError
from pinning.plugin import AutomaticLocking, LockLimit, PinnedInfo
from pinning_hip.current import current_device
from pinning_hip.driver import (
    ALREADY_REGISTERED,
    INVALID_DEVICE_POINTER,
    INVALID_VALUE,
    NOT_FOUND,
    call,
    constant,
)

_PORTABLE = 0x1  # for all devices, not only the current one
_MAPPED = 0x2
_COARSE_GRAINED = 0x8  # in some releases' header also the value of hipHostRegisterReadOnly, which does nothing

_NOT_KNOWN = (INVALID_VALUE, INVALID_DEVICE_POINTER, NOT_FOUND)  # what releases say of a pointer that is not theirs


class HipDevice(AutomaticLocking):
    """The GPU `index` of the runtime's list. `HipPlugin.device` makes it, once the runtime is initialised."""

    def __init__(self, index: int) -> None:
        self.name = f"hip:{index}"
        self._index = index
        (description,) = call("hipDeviceGetName", 256, index)
        self.description = bytes(description).split(b"\0")[0].decode()

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    # ---- locking ----

    @property
    def coherence(self) -> frozenset[bool]:
        """Both: fine-grained is the runtime's own default, and coarse-grained can be asked for."""
        return frozenset({True, False})

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take: the runtime has no limit for one call."""
        return sys.maxsize

    def lock_limit(self) -> LockLimit | None:
        """None: the kernel driver does not count what it locks as locked memory, so RLIMIT_MEMLOCK does not bind it.

        It has a limit of its own, for all processes together, which is nearly all of the machine's memory and is not
        told to anyone; the parameter ``no_system_mem_limit`` of the module amdgpu lifts it.
        """
        return None

    def data_lock(self, ptr: int, size: int, read_only: bool | None, coherent: bool = True) -> int:
        """Register ``[ptr, ptr + size)`` for every GPU and return its device pointer on this one.

        Older releases of the runtime take a range that is registered already and then lose track of it, so both its
        ends are looked up first. A pinned range in the midst of it, which reaches neither end, only newer ones refuse.

        Parameters
        ----------
        ptr, size : int
            A host range in bytes, of any alignment.
        read_only : bool or None
            Of no effect: HIP has no read-only registration.
        coherent : bool
            False: coarse-grained.

        Raises
        ------
        AlreadyPinnedError
            Someone else has pinned some of it.
        VendorError
            The runtime refused; nothing is locked.
        """
        flags = _PORTABLE | _MAPPED | (0 if coherent else _COARSE_GRAINED)
        with current_device(self._index):
            for end in (ptr, ptr + size - 1):
                if self.is_pinned_ptr(end):
                    name = constant("hipError_t", "hipErrorHostMemoryAlreadyRegistered").name
                    raise AlreadyPinnedError("hipHostRegister", ALREADY_REGISTERED, name, f"{end:#x} is pinned")
            try:
                call("hipHostRegister", ptr, size, flags)
                (device_ptr,) = call("hipHostGetDevicePointer", ptr, 0)
                return int(device_ptr)
            except VendorError as error:
                if error.call == "hipHostGetDevicePointer":
                    self.data_unlock(ptr)
                elif error.code == INVALID_VALUE:
                    raise VendorError(error.call, error.code, error.name, _ADVICE) from None
                raise
            except BaseException:
                # Ctrl-C during a long registration is raised here once the runtime has returned, its result lost.
                with contextlib.suppress(VendorError):
                    self.data_unlock(ptr)
                raise

    def data_unlock(self, ptr: int) -> None:
        """Unregister the range that starts at host address `ptr`.

        Raises
        ------
        VendorError
            The runtime refused; it is still locked.
        """
        with current_device(self._index):
            call("hipHostUnregister", ptr)

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned host range around `ptr`, registered or allocated by anyone through HIP, or None.

        Memory that was locked through HSA alone, below HIP, the runtime does not know.
        """
        # hipPointerGetAttributes is not asked: its hipMemoryType has other numbers in HIP 5 than in HIP 6, and
        # hip-python calls it with one argument or two, depending on the release.
        try:
            with current_device(self._index):
                if _attribute("HOST_POINTER", ptr) != ptr or _attribute("IS_MANAGED", ptr):
                    return None
                base = _attribute("RANGE_START_ADDR", ptr)
                # Each tells but one truth: of registered memory this gives no base, and RANGE_SIZE has only 32 bits.
                _, size = call("hipMemGetAddressRange", ptr)
                (device_ptr,) = call("hipHostGetDevicePointer", base, 0)
                return PinnedInfo(base, int(size), int(device_ptr))
        except VendorError as error:
            if error.code in _NOT_KNOWN:
                return None
            raise

    # ---- memory of its own ----

    def allocate(self, size: int) -> int:
        """`size` bytes of device memory."""
        with current_device(self._index):
            (ptr,) = call("hipMalloc", size)
        return int(ptr)

    def free(self, ptr: int) -> None:
        """Give back what `allocate` returned."""
        with current_device(self._index):
            call("hipFree", ptr)

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done.

        The runtime refuses a host range that begins in a lock and reaches past its end.
        """
        with current_device(self._index):
            call("hipMemcpy", dst, src, size, constant("hipMemcpyKind", "hipMemcpyDefault"))


_ADVICE = (
    "is all of it mapped, and writable? HIP has no read-only registration: map a file private and writable "
    "(mmap.ACCESS_COPY, numpy's mode 'c')"
)


def _attribute(name: str, ptr: int) -> int:
    value = bytearray(ctypes.sizeof(ctypes.c_void_p))  # zeroed: a bool fills only its first byte
    call("hipPointerGetAttribute", value, constant("hipPointer_attribute", f"HIP_POINTER_ATTRIBUTE_{name}"), ptr)
    return int.from_bytes(value, sys.byteorder)

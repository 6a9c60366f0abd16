# SPDX-License-Identifier: Apache-2.0
"""One GPU: `Device`, `LimitedDevice` and `CopyDevice` of `pinning.plugin` on the CUDA driver."""

from __future__ import annotations

import contextlib
from typing import Any

from pinning.errors import AlreadyPinnedError, VendorError
from pinning.plugin import LockLimit, PinnedInfo
from pinning_cuda.context import PrimaryContext
from pinning_cuda.driver import INVALID_VALUE, call, constant
from pinning_cuda.registration import DEVICEMAP, PORTABLE, READ_ONLY, advice, needs_read_only

_MEMORYTYPE_HOST = 1


class CudaDevice:
    """The GPU `index` of the driver's list. `CudaPlugin.device` makes it, once the driver is initialised."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        (handle,) = call("cuDeviceGet", index)
        (description,) = call("cuDeviceGetName", 256, handle)
        self.description: str = description.split(b"\0")[0].decode()
        read_only = constant("CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED")
        (self._registers_read_only,) = call("cuDeviceGetAttribute", read_only, handle)
        self._context = PrimaryContext(handle)

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    # ---- locking ----

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take: the driver refuses 512 GiB, so half of that."""
        return 256 << 30

    def lock_limit(self) -> LockLimit | None:
        """None: RLIMIT_MEMLOCK does not bind the NVIDIA driver, and it has no limit of its own."""
        return None

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        """Register ``[ptr, ptr + size)`` for every context and return its device pointer.

        Parameters
        ----------
        ptr, size : int
            A host range in bytes, of any alignment.
        read_only : bool or None
            False: the memory is known to be writable, and its mapping is not looked up. True or None: it is looked
            up, because a buffer that may not be written, such as `bytes`, often lies in a writable mapping.

        Raises
        ------
        InvalidRangeError
            Some of it is not mapped, or is a private read-only mapping of a file, on which the driver hangs.
        AlreadyPinnedError
            Someone else has pinned some of it.
        VendorError
            The driver refused; nothing is locked.
        """
        flags = PORTABLE | DEVICEMAP
        if read_only is not False and needs_read_only(ptr, size) and self._registers_read_only:
            flags |= READ_ONLY
        try:
            with self._context.current():
                call("cuMemHostRegister", ptr, size, flags)
                (device_ptr,) = call("cuMemHostGetDevicePointer", ptr, 0)
                return int(device_ptr)
        except VendorError as error:
            if error.call == "cuMemHostGetDevicePointer":
                self.data_unlock(ptr)
            elif error.call == "cuMemHostRegister" and error.code == INVALID_VALUE:
                # Of memory that it has allocated pinned itself the driver says this, not "already registered".
                pinned = self.is_pinned_ptr(ptr) or self.is_pinned_ptr(ptr + size - 1)
                kind = AlreadyPinnedError if pinned else VendorError
                raise kind(error.call, error.code, error.name, advice(ptr, size, flags)) from None
            raise
        except BaseException:
            # Ctrl-C during a long registration is raised here once the driver has returned, its result lost.
            with contextlib.suppress(VendorError):
                self.data_unlock(ptr)
            raise

    def data_unlock(self, ptr: int) -> None:
        """Unregister the range that starts at host address `ptr`.

        Raises
        ------
        VendorError
            The driver refused; it is still locked.
        """
        with self._context.current():
            call("cuMemHostUnregister", ptr)

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned host range around `ptr`, registered or allocated by anyone in this process, or None.

        It makes no context and needs none to be current.
        """
        try:
            if _attribute("MEMORY_TYPE", ptr) != _MEMORYTYPE_HOST or _attribute("IS_MANAGED", ptr):
                return None
            # The driver gives the start of a range as a device address, the same one in all contexts.
            device_ptr = int(_attribute("RANGE_START_ADDR", ptr))
            return PinnedInfo(_attribute("HOST_POINTER", device_ptr), _attribute("RANGE_SIZE", ptr), device_ptr)
        except VendorError as error:
            if error.code == INVALID_VALUE:  # not a pointer that the driver knows
                return None
            raise

    # ---- memory of its own ----

    def allocate(self, size: int) -> int:
        """`size` bytes of device memory."""
        with self._context.current():
            (ptr,) = call("cuMemAlloc", size)
        return int(ptr)

    def free(self, ptr: int) -> None:
        """Give back what `allocate` returned."""
        with self._context.current():
            call("cuMemFree", ptr)

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done.

        The driver refuses a host range of which only a part is locked, and one that crosses from one lock to another.
        """
        with self._context.current():
            call("cuMemcpy", dst, src, size)
            call("cuStreamSynchronize", 0)  # from pageable memory the last bytes may still be on their way


def _attribute(name: str, ptr: int) -> Any:
    (value,) = call("cuPointerGetAttribute", constant("CUpointer_attribute", f"CU_POINTER_ATTRIBUTE_{name}"), ptr)
    return value

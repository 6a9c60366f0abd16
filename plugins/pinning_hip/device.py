# SPDX-License-Identifier: Apache-2.0
"""One GPU: `CoarseDevice`, `LimitedDevice` and `MemoryDevice` of `pinning.plugin` on the HIP runtime."""

from __future__ import annotations

import contextlib
import sys

from pinning.errors import AlreadyPinnedError, PinningError, VendorError
from pinning.plugin import AutomaticLocking, Device, LockLimit, MemoryConnection, MemoryInfo, MemoryKind, PinnedInfo
from pinning_hip import installation, memory, queue
from pinning_hip.current import current_device
from pinning_hip.driver import (
    ALREADY_REGISTERED,
    INVALID_HANDLE,
    INVALID_VALUE,
    PEER_ACCESS_ALREADY_ENABLED,
    call,
    constant,
)
from pinning_hip.queue import HipQueue

_PORTABLE = 0x1  # for all devices, not only the current one
_MAPPED = 0x2
_COARSE_GRAINED = 0x8  # in some releases' header also the value of hipHostRegisterReadOnly, which does nothing


class HipDevice(AutomaticLocking):
    """The GPU `index` of the runtime's list. `HipPlugin.device` makes it, once the runtime is initialised."""

    def __init__(self, index: int) -> None:
        self.name = f"hip:{index}"
        self._index = index
        (description,) = call("hipDeviceGetName", 256, index)
        self.description = bytes(description).split(b"\0")[0].decode()
        self._memory_kinds: frozenset[MemoryKind] = frozenset()  # until somebody asks
        self._waits_for_values: bool | None = None

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
        try:
            with current_device(self._index):
                if memory.attribute("HOST_POINTER", ptr) != ptr or memory.attribute("IS_MANAGED", ptr):
                    return None
                base = memory.attribute("RANGE_START_ADDR", ptr)
                # Each tells but one truth: of registered memory this gives no base, and RANGE_SIZE has only 32 bits.
                _, size = call("hipMemGetAddressRange", ptr)
                (device_ptr,) = call("hipHostGetDevicePointer", base, 0)
                return PinnedInfo(base, int(size), int(device_ptr))
        except VendorError as error:
            if error.code in memory.NOT_KNOWN:
                return None
            raise

    # ---- memory ----

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """HOST and DEVICE, and SHARED (managed memory) where the GPU has it."""
        if not self._memory_kinds:
            asked = constant("hipDeviceAttribute_t", "hipDeviceAttributeManagedMemory")
            (managed,) = call("hipDeviceGetAttribute", asked, self._index)
            shared = {MemoryKind.SHARED} if managed else set()
            self._memory_kinds = frozenset({MemoryKind.HOST, MemoryKind.DEVICE} | shared)
        return self._memory_kinds

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """`size` bytes. HOST memory is pinned for every GPU, and its device address is the host's.

        Raises
        ------
        VendorError
            The runtime refused, perhaps for want of memory; nothing is allocated.
        """
        with current_device(self._index):
            return memory.allocate(size, kind)

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what `allocate` returned for this kind. The runtime waits until all work of the GPU is done.

        Raises
        ------
        VendorError
            The runtime refused; it is still allocated.
        """
        with current_device(self._index):
            memory.free(ptr, kind)

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The allocation or registration around `ptr`, of anyone through HIP and on any GPU, or None."""
        with current_device(self._index):
            return memory.info(ptr)

    def connection(self, other: Device) -> MemoryConnection:
        """What the GPU `other` can do with DEVICE memory of this one.

        Where `other` can reach it directly, that is enabled for all memory of this GPU, as it must be before use
        (hipDeviceEnablePeerAccess), and stays so; libraries do the same. Otherwise the runtime copies between any two.
        """
        if not isinstance(other, HipDevice):
            return MemoryConnection.NONE
        if other._index == self._index:
            return MemoryConnection.UNIFIED
        (reaches,) = call("hipDeviceCanAccessPeer", other._index, self._index)
        if not reaches:
            return MemoryConnection.MIGRATABLE
        try:
            with current_device(other._index):
                call("hipDeviceEnablePeerAccess", self._index, 0)
        except VendorError as error:
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise
        return MemoryConnection.UNIFIED

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done.

        The runtime refuses a host range that begins in a lock and reaches past its end.
        """
        with current_device(self._index):
            call("hipMemcpy", dst, src, size, constant("hipMemcpyKind", "hipMemcpyDefault"))

    # ---- queues ----

    def make_queue(self) -> HipQueue:
        """A new stream, which does not wait for the default stream, nor that for it.

        Raises
        ------
        PinningError
            hip-python is of a release that keeps Python's GIL.
        """
        self._require_no_gil()
        waits_for_values = self._can_wait_for_values()
        return HipQueue(queue.make_stream(self._index), self._index, True, waits_for_values)

    def adopt_queue(self, handle: int) -> HipQueue:
        """The stream of a ``hipStream_t``, which its owner keeps alive.

        0 is this GPU's default stream, 2 is the calling thread's.

        Raises
        ------
        PinningError
            The stream is on another GPU, or as `make_queue`.
        """
        self._require_no_gil()
        adopted = HipQueue(handle, self._index, False, self._can_wait_for_values())
        try:
            adopted.record()  # no release before 5.6 can be asked for the device of a stream
        except VendorError as error:
            if error.call == "hipEventRecord" and error.code == INVALID_HANDLE:
                raise PinningError(f"stream {handle:#x} is not on {self.name}: adopt it on its own device") from None
            raise
        return adopted

    def synchronize(self) -> None:
        """Wait until all work of this GPU is done."""
        with current_device(self._index):
            call("hipDeviceSynchronize")

    def _can_wait_for_values(self) -> bool:
        if self._waits_for_values is None:
            self._waits_for_values = queue.waits_for_values(self._index)
        return self._waits_for_values

    def _require_no_gil(self) -> None:
        release = installation.release_with_gil()
        if release:
            raise PinningError(
                f"{self.name} has no queues with hip-python {release}, which keeps Python's GIL during each call: a "
                "wait for work that calls Python would never end; pip install 'hip-python>=10'"
            )


_ADVICE = (
    "is all of it mapped, and writable? HIP has no read-only registration: map a file private and writable "
    "(mmap.ACCESS_COPY, numpy's mode 'c')"
)

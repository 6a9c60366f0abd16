# SPDX-License-Identifier: Apache-2.0
"""One GPU: `Device`, `LimitedDevice` and `MemoryDevice` of `pinning.plugin` on the CUDA driver."""

from __future__ import annotations

import contextlib

from pinning.errors import AlreadyPinnedError, PinningError, VendorError
from pinning.plugin import AutomaticLocking, Device, LockLimit, MemoryConnection, MemoryInfo, MemoryKind, PinnedInfo
from pinning_cuda import memory
from pinning_cuda.context import PrimaryContext, current
from pinning_cuda.driver import INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED, TOO_MANY_PEERS, call, constant
from pinning_cuda.queue import CudaQueue
from pinning_cuda.registration import DEVICEMAP, PORTABLE, READ_ONLY, advice, needs_read_only


class CudaDevice(AutomaticLocking):
    """The GPU `index` of the driver's list. `CudaPlugin.device` makes it, once the driver is initialised."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        (self._handle,) = call("cuDeviceGet", index)
        (description,) = call("cuDeviceGetName", 256, self._handle)
        self.description: str = description.split(b"\0")[0].decode()
        self._registers_read_only = self._has("READ_ONLY_HOST_REGISTER_SUPPORTED")
        shared = {MemoryKind.SHARED} if self._has("MANAGED_MEMORY") else set()
        self._memory_kinds = frozenset({MemoryKind.HOST, MemoryKind.DEVICE} | shared)
        self._context = PrimaryContext(self._handle)

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    def _has(self, attribute: str) -> bool:
        asked = constant("CUdevice_attribute", f"CU_DEVICE_ATTRIBUTE_{attribute}")
        (value,) = call("cuDeviceGetAttribute", asked, self._handle)
        return bool(value)

    # ---- locking ----

    @property
    def coherence(self) -> frozenset[bool]:
        """Coherent: the driver knows no other host memory."""
        return frozenset({True})

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
        found = memory.range_around(ptr)
        if not found or found.kind is not MemoryKind.HOST:
            return None
        # The driver gives the start of a range as a device address, the same one in all contexts.
        base = memory.host_base(found.device_ptr)
        return PinnedInfo(base, found.size, found.device_ptr) if base else None

    # ---- memory ----

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """HOST and DEVICE, and SHARED (managed memory) where the GPU has it."""
        return self._memory_kinds

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """`size` bytes, aligned to 256. HOST memory is pinned for every GPU, and its device address is the host's.

        Raises
        ------
        VendorError
            The driver refused, perhaps for want of memory; nothing is allocated.
        """
        with self._context.current():
            return memory.allocate(size, kind)

    def allocate_write_combined(self, size: int) -> int:
        """As `allocate` of HOST memory. The host reads it very slowly, since it is not in its caches."""
        with self._context.current():
            return memory.allocate_write_combined(size)

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what `allocate` returned for this kind. The driver waits until all work of the GPU is done.

        Raises
        ------
        VendorError
            The driver refused; it is still allocated.
        """
        with self._context.current():
            memory.free(ptr, kind)

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The allocation or registration around `ptr`, of anyone in this process and on any GPU, or None.

        It makes no context and needs none to be current. SHARED memory is on the GPU that it was allocated for.
        """
        found = memory.range_around(ptr)
        if not found:
            return None
        base = memory.host_base(found.device_ptr) if found.kind is MemoryKind.HOST else found.device_ptr
        return MemoryInfo(found.kind, base, found.size, found.device) if base else None

    def connection(self, other: Device) -> MemoryConnection:
        """What the GPU `other` can do with DEVICE memory of this one.

        Where `other` can reach it directly, that is enabled for all memory of this GPU, as it must be before use
        (cuCtxEnablePeerAccess), and stays so; libraries do the same. Otherwise the driver copies between any two GPUs.
        """
        if not isinstance(other, CudaDevice):
            return MemoryConnection.NONE
        if other.name == self.name:
            return MemoryConnection.UNIFIED
        (reaches,) = call("cuDeviceCanAccessPeer", other._handle, self._handle)
        if not reaches:
            return MemoryConnection.MIGRATABLE
        try:
            with other._context.current():
                call("cuCtxEnablePeerAccess", self._context.handle, 0)
        except VendorError as error:
            if error.code == TOO_MANY_PEERS:
                return MemoryConnection.MIGRATABLE
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise
        return MemoryConnection.UNIFIED

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done.

        The driver refuses a host range of which only a part is locked, and one that crosses from one lock to another.
        """
        with self._context.current():
            call("cuMemcpy", dst, src, size)
            call("cuStreamSynchronize", 0)  # from pageable memory the last bytes may still be on their way

    # ---- queues ----

    def make_queue(self) -> CudaQueue:
        """A new stream, which does not wait for the legacy default stream, nor that for it."""
        with self._context.current():
            (stream,) = call("cuStreamCreate", constant("CUstream_flags", "CU_STREAM_NON_BLOCKING"))
        return CudaQueue(int(stream), self._context.handle, owned=True)

    def adopt_queue(self, handle: int) -> CudaQueue:
        """The stream of a ``cudaStream_t``, which its owner keeps alive: the driver crashes on one that is gone.

        0 and 1 are this GPU's legacy default stream, 2 is the calling thread's default stream.

        Raises
        ------
        PinningError
            The stream is on another GPU.
        """
        with self._context.current():
            (context, *_) = call("cuStreamGetCtx", handle)
        with current(context):  # not the primary one where a program made its own
            (device,) = call("cuCtxGetDevice")
        if int(device) != int(self._handle):
            raise PinningError(f"stream {handle:#x} is on cuda:{int(device)}, not on {self.name}: adopt it there")
        return CudaQueue(handle, context, owned=False)

    def synchronize(self) -> None:
        """Wait until all work of this GPU is done."""
        with self._context.current():
            call("cuCtxSynchronize")

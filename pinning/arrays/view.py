# SPDX-License-Identifier: Apache-2.0
"""A layout over a buffer: what copies and other libraries need of an array."""

from __future__ import annotations

from typing import Any

import numpy

from pinning.arrays.buffer import Buffer, allocate
from pinning.arrays.layout import Array, Plan, address_of, bytes_at
from pinning.plugin import MemoryDevice, MemoryKind
from pinning.queues import Queue


class View:
    """Where the elements of an array are, and in which memory.

    Attributes
    ----------
    shape : tuple of int
        The number of elements in each dimension.
    dtype : numpy.dtype
        The type of each element.
    ndim : int
        The number of dimensions.
    device : MemoryDevice
        The device of the memory.
    read_only : bool
        Whether the elements cannot be written.
    """

    __slots__ = ("__weakref__", "_buffer", "_layout")

    def __init__(self, layout: Array, buffer: Buffer) -> None:
        self._layout = layout
        self._buffer = buffer

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, in each dimension."""
        return self._layout.strides

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return self._layout.dtype

    @property
    def ndim(self) -> int:
        return self._layout.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._layout.size

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, without gaps."""
        return self._layout.nbytes

    @property
    def device(self) -> MemoryDevice:
        return self._buffer.device

    @property
    def read_only(self) -> bool:
        return not self._layout.flags.writeable

    @property
    def device_ptr(self) -> int:
        """Address of the first element; 0 for an empty array.

        From then on others may use the memory in queues that are not known here: see `DeviceArray`.
        """
        self._buffer.shared = True
        return address_of(self._layout)

    def is_c_contiguous(self) -> bool:
        """Whether the elements are contiguous, with the last index varying fastest."""
        return self._layout.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        """Whether the elements are contiguous, with the first index varying fastest."""
        return self._layout.flags.f_contiguous


def new_view(plan: Plan, device: MemoryDevice, queue: Queue | None) -> View:
    """A view of new memory, for use in `queue` only or, if that is None, anywhere."""
    buffer = allocate(plan.nbytes, MemoryKind.DEVICE, device, queue)
    ptr = buffer.allocation.ptr if buffer.allocation else 0
    return View(plan.laid_out(bytes_at(ptr, plan.nbytes)), buffer)

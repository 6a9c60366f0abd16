# SPDX-License-Identifier: Apache-2.0
"""A layout over a buffer: what copies and other libraries need to know of an array."""

from __future__ import annotations

from typing import Any

import numpy

from pinning.arrays.buffer import Buffer, allocate
from pinning.arrays.layout import Array, Plan, address_of, bytes_at
from pinning.plugin import MemoryDevice, MemoryKind
from pinning.queues import Queue


class View:
    """Where the elements of an array are, and whose memory that is.

    Attributes
    ----------
    shape : tuple of int
        The number of elements in each dimension.
    dtype : numpy.dtype
        What each element is.
    ndim : int
        The number of dimensions.
    device : MemoryDevice
        Whose memory it is.
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

        From then on the memory may be used in queues that are not known here: see `DeviceArray`.
        """
        self._buffer.shared = True
        return address_of(self._layout)

    def is_c_contiguous(self) -> bool:
        """Whether the elements follow one another, the last index moving fastest."""
        return self._layout.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        """Whether the elements follow one another, the first index moving fastest."""
        return self._layout.flags.f_contiguous


def new_view(plan: Plan, device: MemoryDevice, queue: Queue | None) -> View:
    """In memory of its own, for use in `queue` alone, or else anywhere."""
    buffer = allocate(plan.nbytes, MemoryKind.DEVICE, device, queue)
    ptr = buffer.allocation.ptr if buffer.allocation else 0
    return View(plan.laid_out(bytes_at(ptr, plan.nbytes)), buffer)

# SPDX-License-Identifier: Apache-2.0
"""The types of objects that stand for memory."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy


class SupportsBuffer(Protocol):
    """Has the buffer protocol, such as bytes, memoryview, mmap, and NumPy's arrays."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class SupportsArrayInterface(Protocol):
    """Has NumPy's array interface."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """Has the CUDA array interface, such as the arrays of CuPy and numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class SupportsDLPack(Protocol):
    """Has DLPack."""

    def __dlpack_device__(self) -> tuple[Any, int]: ...


class SupportsDataPtr(Protocol):
    """Is a tensor, as those of PyTorch are."""

    def data_ptr(self) -> int: ...


class SupportsBuf(Protocol):
    """Is a `multiprocessing.shared_memory.SharedMemory`, or like one."""

    @property
    def buf(self) -> memoryview | None: ...


Buffer: TypeAlias = (
    SupportsBuffer
    | SupportsArrayInterface
    | SupportsCudaArrayInterface
    | SupportsDLPack
    | SupportsDataPtr
    | SupportsBuf
    | tuple[int, int]
    | int
    | numpy.integer[Any]
)
"""What this package takes as memory: an object that has memory, an address and a number of bytes, or an address.

An address alone is one byte, or as many as another argument of the call says.
"""

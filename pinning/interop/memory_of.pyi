# SPDX-License-Identifier: Apache-2.0
from typing import Any, NamedTuple, SupportsIndex

import numpy

class HostBuffer(NamedTuple):
    ptr: int
    size: int
    read_only: bool | None
    owner: object
    contiguous: bool = True

class ArrayMemory(NamedTuple):
    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: numpy.dtype[Any]
    read_only: bool
    owner: object
    device: tuple[int, int] | None
    stream: int | None

def host_buffer(buffer: object, size: SupportsIndex | None = None) -> HostBuffer: ...
def array_memory(array: Any) -> ArrayMemory: ...

# SPDX-License-Identifier: Apache-2.0
"""Arrays on any device, with the names of numba.cuda.

    from pinning import arrays

    there = arrays.to_device(numpy.arange(6.0))
    there[::2] = 0
    there.copy_to_host()

- ``array.py``: `DeviceArray`, over a ``view.py``; ``create.py``: `device_array`, `to_device`, `as_device_array`;
- ``host.py``: NumPy arrays in memory that devices access: `pinned`, `pinned_array`, `mapped_array`, `managed_array`;
- ``exchange.py``: arrays of other libraries as `DeviceArray`, and the reverse;
- ``layout.py``: shape and strides, by NumPy; ``transfer.py``, ``move.py``: copies between any strides;
- ``buffer.py``: the memory, and when it is given back: `defer_cleanup`;
- ``streams.py``: queues, with CUDA's names.
"""

from pinning.arrays.array import DeviceArray
from pinning.arrays.buffer import defer_cleanup, synchronize
from pinning.arrays.create import as_device_array, device_array, device_array_like, to_device
from pinning.arrays.exchange import is_device_array
from pinning.arrays.host import (
    MappedArray,
    managed_array,
    mapped_array,
    mapped_array_like,
    pinned,
    pinned_array,
    pinned_array_like,
)
from pinning.arrays.streams import auto_synchronize, default_stream, external_stream, stream

__all__ = [
    "DeviceArray",
    "MappedArray",
    "as_device_array",
    "auto_synchronize",
    "default_stream",
    "defer_cleanup",
    "device_array",
    "device_array_like",
    "external_stream",
    "is_device_array",
    "managed_array",
    "mapped_array",
    "mapped_array_like",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "stream",
    "synchronize",
    "to_device",
]

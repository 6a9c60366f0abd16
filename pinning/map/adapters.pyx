# SPDX-License-Identifier: Apache-2.0
"""C++ adapters of devices, queues and registrars that are written in Python: <pinning/python_device.hpp>.

Only this module makes them, because each extension module would count its own calls of Python devices.
"""

cimport cython
from cython.operator cimport dereference
from libcpp.string cimport string

from pinning.map.native cimport PythonQueue, PythonTraits
from pinning.map.native cimport add_registrar as add_native_registrar
from pinning.map.native cimport device_calls, object_of_event
from pinning.plugin.native cimport NativeDevice, wrap_event, wrap_queue

from functools import partial
from weakref import ref

from pinning.errors import AlreadyPinnedError
from pinning.plugin.memory import MemoryKind
from pinning.runtime.per_device import PerDevice

cdef tuple KINDS = tuple(MemoryKind)
cdef dict _queues = {}  # of queues that are not native, by id: a weak reference that removes the entry, and the adapter


@cython.final
@cython.no_gc_clear
cdef class DeviceAdapter:
    """The C++ interface of a device written in Python. The device keeps it, and is freed without the collector."""

    def __cinit__(self, device):
        cdef PythonTraits traits
        traits.name = str(getattr(device, "name", type(device).__name__)).encode()
        coherence = getattr(device, "coherence", ())
        traits.coherence.fine, traits.coherence.coarse = True in coherence, False in coherence
        traits.has_memory_info = callable(getattr(device, "memory_info", None))
        # A device without attributes cannot keep the adapter: both are then kept permanently.
        self.device = None if isinstance(getattr(device, "__dict__", None), dict) else device
        self.vendor = new PythonDevice(<PyObject*>device, <PyObject*>AlreadyPinnedError, <PyObject*>KINDS, traits)

    def __dealloc__(self):
        del self.vendor


_devices = PerDevice(DeviceAdapter)


cdef object adapter_of(object device):
    return device if isinstance(device, NativeDevice) else _devices.get(device)


cdef VendorDevice* vendor_of(object device) except NULL:
    adapter = adapter_of(device)
    return (<NativeDevice>adapter).native if adapter is device else (<DeviceAdapter>adapter).vendor


def is_native(device: object) -> bool:
    """Whether native code of this process knows the device too."""
    return vendor_of(device).is_permanent()


def synchronize_in_background(device: object) -> None:
    """Wait for all work of a device, on a thread that the program does not know: ends no capture."""
    cdef VendorDevice* vendor = vendor_of(device)
    with nogil:
        vendor.synchronize_beside_captures()


cdef NativeQueue native_queue(object queue):
    if isinstance(queue, NativeQueue):
        return queue
    key = id(queue)  # queues may compare equal, or not be hashable
    known = _queues.get(key)
    if known is None:
        adapter = wrap_queue(new PythonQueue(<PyObject*>queue))
        known = _queues.setdefault(key, (ref(queue, partial(_queues.pop, key)), adapter))  # the reference: its default
    return known[1]


cdef object event_object(const shared_ptr[VendorEvent]& event):
    if event.get() is NULL:
        return None
    cdef PyObject* own = object_of_event(dereference(event))
    return wrap_event(event) if own is NULL else <object>own


cdef PythonRegistrar* add_registrar(CPinnedMap* map, object registrar, uint64_t piece) except NULL:
    cdef PyObject* borrowed = <PyObject*>registrar
    cdef PythonRegistrar* added
    with nogil:
        added = add_native_registrar(dereference(map), borrowed, piece)
    return added


cdef bint is_in_device_call() noexcept nogil:
    return device_calls > 0

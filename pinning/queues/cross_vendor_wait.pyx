# SPDX-License-Identifier: Apache-2.0
"""How a queue of one vendor waits for an event of another: <pinning/simple_operations.hpp>."""

from cython.operator cimport dereference
from libcpp cimport bool as cbool

from pinning.map.adapters cimport vendor_of
from pinning.plugin.native cimport VendorDevice, raise_in_python
from pinning.queues.event cimport CEvent
from pinning.queues.lane cimport CEvents, Lane, Operation

from pinning.queues import pending
from pinning.queues.staging import staging_of
from pinning.runtime.process import emptied_at_fork

cdef extern from "<pinning/simple_operations.hpp>" namespace "pinning" nogil:
    cppclass CSignal "pinning::Signal"(Operation):
        CSignal(VendorDevice& device) except +raise_in_python

    cppclass SignalWait(Operation):
        SignalWait(VendorDevice& device, CSignal& signal) except +raise_in_python

cdef enum:
    MOST = 4  # helpers of one device; if all are busy, signals wait for one another

cdef dict helpers = emptied_at_fork({})  # lists of lanes by id of the device, which the lanes keep alive


cdef class Signal(Work):
    cdef object staging  # keeps the device while it has rings
    cdef CSignal* signal  # the same as `native`

    def __cinit__(self, device):
        cdef VendorDevice* vendor = vendor_of(device)
        self.staging = staging_of(device)
        with nogil:
            self.signal = new CSignal(dereference(vendor))
        self.native = self.signal

    def __dealloc__(self):
        with nogil:
            del self.signal


cdef class CrossVendorWait(Work):
    cdef object staging
    cdef Signal signal  # also kept by the helper, until it is set
    cdef SignalWait* wait  # the same as `native`

    def __cinit__(self, device, Signal signal):
        cdef VendorDevice* vendor = vendor_of(device)
        self.staging, self.signal = staging_of(device), signal
        with nogil:
            self.wait = new SignalWait(dereference(vendor), dereference(self.signal.signal))
        self.native = self.wait

    def __dealloc__(self):
        with nogil:
            del self.wait


cdef Work cross_vendor_wait(Event event, object device):
    cdef CEvents after
    cdef CEvent native = event.native  # another thread may resolve it, and forget its place, while the GIL is released
    cdef Signal signal = Signal(event.queue.device)
    cdef Lane helper
    after.push_back(&native)
    while True:
        helper = None
        try:
            helper = helper_of(event.queue.device)
            helper.put(Event.__new__(Event), signal, after, ())
            break
        except Exception:
            try:
                if event.done():
                    return None
            except Exception:  # the event failed, so it is over; a wait for it reports the error
                return None
            # If it is gone from there, `close_idle_helpers` is closing it, or has.
            if helper is None or helper in helpers.get(id(event.queue.device), ()):
                raise
    return CrossVendorWait(device, signal)


cdef Lane helper_of(object device):
    """Return an idle helper, or a new one up to `MOST`, or else the next in turn."""
    cdef list all_of = helpers.setdefault(id(device), [])
    cdef Lane helper
    for helper in list(all_of):
        if helper.poll():
            return helper
    if len(all_of) < MOST:
        helper = Lane(pending.vendor_queue(device), True, False, device)
        all_of.append(helper)
        return helper
    helper = all_of.pop(0)
    all_of.append(helper)
    return helper


def close_idle_helpers() -> None:
    """Give back the helper queues that have set all their signals."""
    cdef Lane helper
    cdef cbool interrupted = False
    for all_of in list(helpers.values()):
        for helper in list(all_of):
            if helper.poll() and helper in all_of:
                all_of.remove(helper)
                helper.finish(interrupted)

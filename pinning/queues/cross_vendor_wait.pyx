# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""How a queue of one vendor waits for an event of another."""

from pinning.queues.event cimport Event
from pinning.queues.lane cimport Lane, NONE
from pinning.queues.order cimport Timeline

from typing import TYPE_CHECKING

from pinning.queues.staging import staging_of
from pinning.runtime import process

if TYPE_CHECKING:
    from pinning.plugin import MemoryDevice, VendorQueue

cdef enum:
    MOST = 4  # helpers of one device; if all are busy, signals wait for one another

cdef dict helpers = {}  # lists of lanes by id of the device, which the lanes keep alive


cdef class CrossVendorWait:
    """A wait for an event of another vendor. The waiting queue keeps it until the wait is over."""

    cdef object signal
    cdef object wait

    def submit(self, queue: VendorQueue, device: MemoryDevice) -> None:
        """Make this queue wait. Raises the vendor's errors."""
        self.wait = staging_of(device).wait(queue, self.signal)


def cross_vendor_wait(Event event not None) -> CrossVendorWait | None:
    """Make a wait for `event` that another vendor's queue can submit; None if the event is over.

    Raises
    ------
    VendorError
        The event's vendor refused to wait for it.
    """
    device = event.queue.device
    cdef list kept = []  # also kept by the helper, until it has set the signal
    cdef CrossVendorWait wait = CrossVendorWait.__new__(CrossVendorWait)

    def work(queue):
        kept.append(staging_of(device).signal(queue))

    try:
        helper_of(device).put(Event.__new__(Event), work, [event.recorded()], NONE, (kept,))
    except Exception:
        try:
            if event.done():
                return None
        except Exception:  # the event failed, so it is over; a wait for it reports the error
            return None
        raise
    wait.signal = kept[0]
    return wait


cdef Lane helper_of(object device):
    """Return an idle helper, or a new one up to `MOST`, or else the next in turn."""
    cdef list all_of = helpers.setdefault(id(device), [])
    cdef Lane helper
    for helper in list(all_of):
        if helper.poll():
            return helper
    if len(all_of) < MOST:
        helper = Lane(device.make_queue(), Timeline(True), False, device)
        all_of.append(helper)
        return helper
    helper = all_of.pop(0)
    all_of.append(helper)
    return helper


def close_idle_helpers() -> None:
    """Give back the helper queues that have set all their signals."""
    cdef Lane helper
    for all_of in list(helpers.values()):
        for helper in list(all_of):
            if helper.poll() and helper in all_of:
                all_of.remove(helper)
                helper.finish()


def _after_fork_in_child():
    process.keep_for_ever(list(helpers.values()))
    helpers.clear()


process.at_fork(process.Subsystem.QUEUES, _after_fork_in_child)

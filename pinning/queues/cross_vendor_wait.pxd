# SPDX-License-Identifier: Apache-2.0
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Work


# A wait for `event` that a queue of `device`, of another vendor, can submit; None if the event is over. Raises VendorError
# if the event's vendor refused to wait for it.
cdef Work cross_vendor_wait(Event event, object device)

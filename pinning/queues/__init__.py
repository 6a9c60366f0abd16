# SPDX-License-Identifier: Apache-2.0
"""Work for a device, in order: queues, and the events that say how far they have come.

- ``order``: what depends on what, without holding events;
- ``event``: an operation, to be waited for;
- ``lane``: one vendor's queue, and what is kept until its work is over;
- ``submitter``: which lane an operation goes to, and what it waits for;
- ``cross_vendor_wait``: how a queue of one vendor waits for an event of another;
- ``host_callback``: functions of Python that a vendor's queue calls;
- ``pending``: what becomes of work that is not polled, at exit and at fork;
- ``links``: which other devices may carry a part of large copies;
- ``queue``: `Queue`, the face of it all.
"""

from pinning.queues.event import Event, joined
from pinning.queues.order import Dependencies, Timeline, TimelinePoint
from pinning.queues.pending import uses
from pinning.queues.queue import Queue, as_queue, default_queue

__all__ = [
    "Dependencies",
    "Event",
    "Queue",
    "Timeline",
    "TimelinePoint",
    "as_queue",
    "default_queue",
    "joined",
    "uses",
]

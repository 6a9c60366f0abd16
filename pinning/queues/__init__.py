# SPDX-License-Identifier: Apache-2.0
"""Queues, which order the work for a device, and events, which tell how far it has come.

- ``event``: an operation that can be waited for;
- ``lane``: one vendor's queue, and the objects it keeps until its work is over;
- ``submitter``: submission to the lanes of a queue;
- ``cross_vendor_wait``: how a queue of one vendor waits for an event of another;
- ``host_callback``: Python functions that a vendor's queue calls;
- ``pending``: work that the program does not poll, also at exit and fork;
- ``links``: which other devices may carry a part of large copies;
- ``queue``: `Queue`, the public interface to all of this.
"""

from pinning.queues.event import Event
from pinning.queues.queue import Queue, as_queue, default_queue

__all__ = [
    "Event",
    "Queue",
    "as_queue",
    "default_queue",
]

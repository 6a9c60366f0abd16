# SPDX-License-Identifier: Apache-2.0
"""The event of a copy, and the common copies, recognised at once: between an allocation on a device and a buffer."""

from collections.abc import Iterable

from pinning.copies.costs import Costs
from pinning.copies.plan import Path
from pinning.queues import Event, Queue

class Copy(Event):
    """A copy under way: an `Event` that also says how the bytes travel.

    Attributes
    ----------
    path : Path
        ``"direct"``, ``"staged"``, ``"lock"`` or ``"plain"``.
    reason : str
        Why.
    """

    path: Path
    reason: str

def copy_whole(dst: object, src: object, queue: Queue, wait_for: Iterable[Event], costs: Costs) -> Copy | None:
    """Copy all of an allocation of kind DEVICE and all of a buffer that one lock holds whole, or no lock at all.

    None, and nothing is copied, for all other ends. It decides nothing that `plan` would not: it is for the time that
    the general way takes.
    """

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from typing import NoReturn

class Line:
    """The operations of one in-order lane of a vendor, by position: 1, 2, 3 and so on.

    Attributes
    ----------
    reached : int
        The last position that is known to be over. It only grows.
    ordered : bool
        Whether each operation comes after all before it. In the lanes of an out-of-order queue they happen to run so,
        and nobody may rely on it.
    """

    def __init__(self, ordered: bool) -> None: ...
    @property
    def reached(self) -> int: ...
    @property
    def ordered(self) -> bool: ...

class Point:
    """Where an operation stands: what is left of an `Event` for those who must know later whether it is over.

    It holds neither the event nor the queue, and costs the vendor nothing.
    """

    @property
    def line(self) -> Line: ...
    @property
    def position(self) -> int: ...
    @property
    def reached(self) -> bool:
        """Whether the operation is known to be over. Asks nobody: see `Queue.poll`."""

    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class History:
    """All that an operation comes after, through queues and wait lists.

    Of an in-order queue it has every operation up to a position; of an out-of-order queue single ones. What is known
    to be over is in every history.
    """

    def __init__(self) -> NoReturn: ...
    def __contains__(self, point: Point) -> bool: ...
    @property
    def positions(self) -> Mapping[object, int]:
        """What it is made of, to be looked at by tests: how much it has grown."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from typing import Literal, SupportsIndex

from pinning.copies.plan import Plan
from pinning.copies.work import Copy
from pinning.queues import Event, Queue

def copy_async(
    dst: object,
    src: object,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
    *,
    src_access_order: Literal["stream", "any"] = "stream",
) -> Copy: ...
def copy(dst: object, src: object, nbytes: int | None = None, queue: Queue | object | None = None) -> Copy: ...
def fill(
    dst: object,
    value: SupportsIndex | bytes,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> Event: ...
def explain(dst: object, src: object, nbytes: int | None = None, queue: Queue | object | None = None) -> Plan: ...

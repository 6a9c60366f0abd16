# SPDX-License-Identifier: Apache-2.0
"""The forms of batches, rows and fills that wait until all is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from pinning.copies.batch import copy_batch_async, copy_blocks_async
from pinning.copies.direct import fill_async
from pinning.copies.rows import copy_2d_async

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pinning.copies.batch_plan import Engine
    from pinning.copies.work import Copy
    from pinning.locking.lock import Lock
    from pinning.queues import Event, Queue
    from pinning.runtime.buffers import Buffer


def copy_2d(
    dst: Buffer | Lock,
    dst_pitch: int,
    src: Buffer | Lock,
    src_pitch: int,
    width: int,
    height: int,
    queue: Queue | object | None = None,
) -> Copy:
    """`copy_2d_async`, and wait until it is complete.

    Parameters
    ----------
    dst, dst_pitch, src, src_pitch, width, height, queue
        As for `copy_2d_async`, including the errors.

    Returns
    -------
    Copy
        The completed copy.
    """
    done = copy_2d_async(dst, dst_pitch, src, src_pitch, width, height, queue)
    done.wait()
    return done


def copy_batch(
    dsts: Sequence[Buffer | Lock] | NDArray[Any],
    srcs: Sequence[Buffer | Lock] | NDArray[Any],
    sizes: int | Sequence[int] | NDArray[Any] | None = None,
    queue: Queue | object | None = None,
    engine: Engine = "auto",
) -> Copy:
    """`copy_batch_async`, and wait until it is complete.

    All bytes are then in place, for work of any stream, thread or device.

    Parameters
    ----------
    dsts, srcs, sizes, queue, engine
        As for `copy_batch_async`, including the errors.

    Returns
    -------
    Copy
        The completed copy.
    """
    done = copy_batch_async(dsts, srcs, sizes, queue, (), engine)
    done.wait()
    return done


def copy_blocks(
    dst: Buffer | Lock,
    dst_indices: Sequence[int] | NDArray[Any],
    src: Buffer | Lock,
    src_indices: Sequence[int] | NDArray[Any],
    block_bytes: int,
    queue: Queue | object | None = None,
    engine: Engine = "auto",
) -> Copy:
    """`copy_blocks_async`, and wait until it is complete.

    Parameters
    ----------
    dst, dst_indices, src, src_indices, block_bytes, queue, engine
        As for `copy_blocks_async`, including the errors.

    Returns
    -------
    Copy
        The completed copy.

    Examples
    --------
    >>> cache, back = numpy.arange(8000).reshape(8, 1000), numpy.empty((2, 1000), int)
    >>> with pinning.Queue() as queue, pinning.alloc(16000, device=queue.device) as memory:
    ...     copy = pinning.copy_blocks(memory, [0, 1], cache, [7, 3], 8000, queue=queue)
    ...     copy = pinning.copy_blocks(back, [0, 1], memory, [0, 1], 8000, queue=queue)
    >>> back[:, 0]
    array([7000, 3000])
    """
    done = copy_blocks_async(dst, dst_indices, src, src_indices, block_bytes, queue, (), engine)
    done.wait()
    return done


def fill(
    dst: Buffer | Lock,
    value: SupportsIndex | bytes,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
) -> Event:
    """`fill_async`, and wait until it is complete.

    Parameters
    ----------
    dst, value, nbytes, queue
        As for `fill_async`, including the errors.

    Returns
    -------
    Event
        The completed event.

    Examples
    --------
    >>> with pinning.Queue() as queue, pinning.alloc(8000, device=queue.device) as memory:
    ...     filled = pinning.fill(memory, 0, queue=queue)
    """
    done = fill_async(dst, value, nbytes, queue)
    done.wait()
    return done

# SPDX-License-Identifier: Apache-2.0
"""Copies by the GPUs' engines, whose end a signal tells."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from pinning.errors import VendorError
from pinning_hsa import abi
from pinning_hsa.abi import Dim3, Handle, PitchedPointer
from pinning_hsa.driver import check, loaded
from pinning_hsa.pointers import Reached
from pinning_hsa.signals import SpareSignals


class Rows(NamedTuple):
    """`height` rows of `width` bytes, whose starts are so many bytes apart."""

    dst: int
    dst_pitch: int
    src: int
    src_pitch: int
    width: int
    height: int


def begin(rows: Rows, to: Reached, source: Reached, signal: Handle, after: Sequence[Handle] = ()) -> None:
    """Have engines copy `rows`, of which one end at least is a GPU's, once all signals of `after` are 0.

    By the end of all the signal is counted down `height` times, and is below 0 if a copy has failed. It is counted down
    as often where this fails, or Ctrl-C ends it, by the end of what was begun by then.

    Raises
    ------
    VendorError
        The runtime refused.
    """
    submit, subtract = loaded().hsa_amd_memory_async_copy, loaded().hsa_signal_subtract_screlease
    waits = (len(after), (Handle * len(after))(*after) if after else None)
    left = rows.height
    try:
        if rows.height > 1 and _is_rectangle(rows, to, source):
            subtract(signal, left - 1)
            left = 0
            if _begin_rectangle(rows, to, source, waits, signal) == abi.SUCCESS:
                return
            # The engines have no such command, or not for pitches as large as these.
            subtract(signal, 1 - rows.height)
            left = rows.height
        for row in range(rows.height):
            dst, src = to.ptr + row * rows.dst_pitch, source.ptr + row * rows.src_pitch
            left -= 1  # before the call, after which Ctrl-C is raised and its code lost
            code = submit(dst, to.agent, src, source.agent, rows.width, *waits, signal)
            if code != abi.SUCCESS:
                left += 1
                check("hsa_amd_memory_async_copy", code)
    finally:
        if left:
            subtract(signal, left)


def copy_and_wait(dst: Reached, src: Reached, size: int) -> None:
    """Copy, of which one end at least is a GPU's, and wait for the end.

    Raises
    ------
    VendorError
        The runtime refused, or the copy failed under way; then the code is the signal's value.
    """
    wait = loaded().hsa_signal_wait_scacquire
    spares = SpareSignals()
    signal = spares.take_with(1)
    try:
        begin(Rows(dst.ptr, 0, src.ptr, 0, size, 1), dst, src, signal)
    finally:
        # After Ctrl-C too: the bytes must not be given back to anyone while the GPU is at them.
        value = wait(signal, abi.SIGNAL_CONDITION_LT, 1, abi.FOREVER, abi.WAIT_STATE_BLOCKED)
        spares.give(signal)
        spares.close()
    if value < 0:
        raise failed(value)


def failed(value: int) -> VendorError:
    """The error of a copy whose signal has become negative."""
    return VendorError("hsa_amd_memory_async_copy", value, "the completion signal is negative")


def _is_rectangle(rows: Rows, to: Reached, source: Reached) -> bool:
    aligned = not (to.ptr | source.ptr | rows.dst_pitch | rows.src_pitch) % 4
    return aligned and rows.width <= min(rows.dst_pitch, rows.src_pitch) and max(rows.width, rows.height) < 1 << 32


def _begin_rectangle(rows: Rows, to: Reached, source: Reached, waits: tuple[int, object], signal: Handle) -> int:
    dst = PitchedPointer(to.ptr, rows.dst_pitch, rows.dst_pitch * rows.height)
    src = PitchedPointer(source.ptr, rows.src_pitch, rows.src_pitch * rows.height)
    start, extent = Dim3(0, 0, 0), Dim3(rows.width, rows.height, 1)
    gpu = source.agent if source.is_gpu else to.agent
    direction = 2 * source.is_gpu + to.is_gpu
    by = ctypes.byref
    rectangle = loaded().hsa_amd_memory_async_copy_rect
    code: int = rectangle(by(dst), by(start), by(src), by(start), by(extent), gpu, direction, *waits, signal)
    return code

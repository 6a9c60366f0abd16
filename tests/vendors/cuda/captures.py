# SPDX-License-Identifier: Apache-2.0
"""Captures of a CUDA stream by the driver's own calls, as a framework makes them: on the stand-in and on a real GPU."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Self

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
MODES = {"global": GLOBAL, "thread_local": THREAD_LOCAL, "relaxed": RELAXED}


class CaptureLostError(Exception):
    """The driver has invalidated the capture."""


def _call(name: str, *arguments: object) -> None:
    code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if code:
        raise CaptureLostError(f"{name}: {code}")


class Graph:
    """A graph of the work submitted to `stream` within ``with``; it can be launched until `close`."""

    def __init__(self, stream: int, mode: str = "global") -> None:
        self._stream, self._mode = ctypes.c_void_p(stream), MODES[mode]
        self._exec: ctypes.c_void_p | None = None

    def __enter__(self) -> Self:
        _call("cuStreamBeginCapture_v2", self._stream, self._mode)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        graph = ctypes.c_void_p()
        _call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        self._exec = ctypes.c_void_p()
        context = ctypes.c_void_p()
        _call("cuStreamGetCtx", self._stream, ctypes.byref(context))
        _call("cuCtxPushCurrent_v2", context)
        try:
            _call("cuGraphInstantiateWithFlags", ctypes.byref(self._exec), graph, ctypes.c_ulonglong(0))
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(context))
            _call("cuGraphDestroy", graph)

    def launch(self) -> None:
        """Launch the graph in its stream, and wait for it."""
        _call("cuGraphLaunch", self._exec, self._stream)
        _call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        _call("cuGraphExecDestroy", self._exec)

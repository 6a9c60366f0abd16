# SPDX-License-Identifier: Apache-2.0
"""An OpenMP runtime as a tool sees it: devices, mappings and transfers that consist of OMPT's callbacks alone.

Memory mapped at `host` has the device address `host + SHIFT * (device + 1)`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

SHIFT = 1 << 50
ALLOC, TO_DEVICE, FROM_DEVICE, DELETE, ASSOCIATE, DISASSOCIATE = 1, 2, 3, 4, 5, 6
BEGIN, END = 1, 2
NEVER, ALWAYS = 1, 5

_Function = CFUNCTYPE(None)
_Lookup = CFUNCTYPE(c_void_p, c_char_p)
_SetCallback = CFUNCTYPE(c_int, c_int, c_void_p)
_Initialize = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
_Finalize = CFUNCTYPE(None, c_void_p)

_DEVICE_INITIALIZE, _OP, _OP_EMI = 12, 9, 34
_operands = [c_int, c_void_p, c_int, c_void_p, c_int, c_size_t, c_void_p]
_PROTOTYPES: dict[int, Any] = {
    _DEVICE_INITIALIZE: CFUNCTYPE(None, c_int, c_char_p, c_void_p, c_void_p, c_char_p),
    _OP: CFUNCTYPE(None, c_uint64, c_uint64, *_operands),
    _OP_EMI: CFUNCTYPE(None, c_int, c_void_p, c_void_p, c_void_p, *_operands),
}


class _Result(ctypes.Structure):
    _fields_ = (("initialize", c_void_p), ("finalize", c_void_p), ("tool_data", c_uint64))


class Runtime:
    """A runtime that starts the tool in `library`.

    Parameters
    ----------
    library : ctypes.CDLL
        The tool.
    types : sequence of str
        The devices' types, from device 0 on.
    emi : bool
        Whether the runtime has the callbacks with endpoints.
    """

    def __init__(self, library: ctypes.CDLL, *types: str, emi: bool = True) -> None:
        self._emi = emi
        self._callbacks: dict[int, Any] = {}
        self._host = len(types)
        self._set = _SetCallback(self._set_callback)
        functions = {b"ompt_set_callback": ctypes.cast(self._set, c_void_p).value}
        self._lookup = _Lookup(functions.get)
        library.ompt_start_tool.restype = ctypes.POINTER(_Result)
        self._result = library.ompt_start_tool(201811, b"a runtime of tests").contents
        assert _Initialize(self._result.initialize)(ctypes.cast(self._lookup, c_void_p), 0, None) == 1
        for number, kind in enumerate(types):
            self._callbacks[_DEVICE_INITIALIZE](number, kind.encode(), None, None, None)

    def _set_callback(self, event: int, function: int) -> int:
        if event not in _PROTOTYPES or (event == _OP_EMI and not self._emi):
            return NEVER
        self._callbacks[event] = _PROTOTYPES[event](function)
        return ALWAYS

    def map(self, host: int, size: int, device: int = 0, how: int = ALLOC) -> None:
        target = address_on(device, host)
        with self._operation(how, host, self._host, lambda done: target if done else None, device, size):
            pass

    def unmap(self, host: int, device: int = 0) -> None:
        with self._operation(DELETE, address_on(device, host), device, lambda done: None, -1, 0):
            pass

    def disassociate(self, host: int, device: int = 0) -> None:
        with self._operation(DISASSOCIATE, host, self._host, lambda done: None, device, 0):
            pass

    @contextmanager
    def to_device(self, host: int, size: int, device: int = 0) -> Iterator[None]:
        """Transfer to the device; the block runs during the transfer."""
        target = address_on(device, host)
        with self._operation(TO_DEVICE, host, self._host, lambda done: target, device, size):
            yield

    def transfer_between(self, host: int, target: int, size: int, device: int = 0) -> None:
        """Transfer to a place on the device that need not be that of `host`."""
        with self._operation(TO_DEVICE, host, self._host, lambda done: target, device, size):
            pass

    @contextmanager
    def from_device(self, host: int, size: int, device: int = 0) -> Iterator[None]:
        with self._operation(FROM_DEVICE, address_on(device, host), device, lambda done: host, self._host, size):
            yield

    @contextmanager
    def _operation(
        self, how: int, source: int, source_device: int, target: Callable[[bool], int | None], device: int, size: int
    ) -> Iterator[None]:
        if self._emi:
            emi = self._callbacks[_OP_EMI]
            emi(BEGIN, None, None, None, how, source, source_device, target(False), device, size, None)
            yield
            emi(END, None, None, None, how, source, source_device, target(True), device, size, None)
        else:
            self._callbacks[_OP](0, 0, how, source, source_device, target(False), device, size, None)
            yield

    def finish(self) -> None:
        _Finalize(self._result.finalize)(None)


def address_on(device: int, host: int) -> int:
    return host + SHIFT * (device + 1)

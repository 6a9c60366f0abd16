# SPDX-License-Identifier: Apache-2.0
"""<pinning/pinning.h> for Python tests: statuses by name, and a map whose methods raise them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import pinning
from pinning.copies import CopyPath, Reason

HEADER = (pinning.build.include_dirs()[0] / "pinning" / "pinning.h").read_text()
STATUSES = re.findall(r"PINNING_\w+", HEADER.partition("enum pinning_status PINNING_ENUM {")[2].partition("}")[0])
INCLUDES = pinning.build.include_dirs()[0] / "pinning"
LIBRARY = pinning.build.library_dirs()[0] / "libpinning.so.0"

OFF, ON, MANDATORY = range(3)


class _Region(ctypes.Structure):
    _fields_ = [
        ("start", c_void_p),
        ("size", c_size_t),
        ("device_ptr", c_void_p),
        ("piece", c_size_t),
        ("references", c_uint32),
        ("external", c_uint32),
    ]


class Region(NamedTuple):
    start: int
    size: int
    device_ptr: int
    piece: int
    references: int
    external: int


class StatusError(Exception):
    """A call that did not return PINNING_OK."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


_lib = ctypes.CDLL(str(LIBRARY))
_lib.pinning_last_error.restype = c_char_p
for _name, _arguments in {
    "pinning_map_open": [POINTER(c_void_p), c_char_p],
    "pinning_lock": [c_void_p, c_void_p, c_size_t, POINTER(c_void_p)],
    "pinning_unlock": [c_void_p, c_void_p],
    "pinning_register": [c_void_p, c_void_p, c_size_t, c_void_p],
    "pinning_unregister": [c_void_p, c_void_p],
    "pinning_refresh": [c_void_p],
    "pinning_lock_mapped": [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p)],
    "pinning_unlock_unmapped": [c_void_p, c_void_p],
    "pinning_find": [c_void_p, c_void_p, c_size_t, POINTER(_Region)],
    "pinning_regions": [c_void_p, POINTER(_Region), c_size_t, POINTER(c_size_t)],
    "pinning_set_budget": [c_uint64],
    "pinning_copy_batch": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t],
    "pinning_copy_batch_async": [*[c_void_p] * 4, c_size_t, c_void_p, POINTER(c_void_p)],
    "pinning_copy": [c_void_p, c_void_p, c_void_p, c_size_t],
    "pinning_copy_async": [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p)],
    "pinning_copy_path": [c_void_p, POINTER(c_int)],
    "pinning_copy_reason": [c_void_p, POINTER(c_int)],
    "pinning_copy_done": [c_void_p, POINTER(c_int)],
    "pinning_copy_wait": [c_void_p],
    "pinning_queue_create": [c_void_p, POINTER(c_void_p)],
    "pinning_queue_create_out_of_order": [c_void_p, POINTER(c_void_p)],
    "pinning_queue_adopt": [c_void_p, c_void_p, POINTER(c_void_p)],
    "pinning_queue_destroy": [c_void_p],
    "pinning_queue_copy": [*[c_void_p] * 3, c_size_t, c_void_p, c_size_t, POINTER(c_void_p)],
    "pinning_queue_copy_2d": [
        *[c_void_p, c_void_p, c_size_t, c_void_p],
        *[*[c_size_t] * 3, c_void_p, c_size_t, POINTER(c_void_p)],
    ],
    "pinning_queue_copy_batch": [*[c_void_p] * 4, c_size_t, c_void_p, c_size_t, POINTER(c_void_p)],
    "pinning_queue_record": [c_void_p, POINTER(c_void_p)],
    "pinning_queue_wait": [c_void_p, c_void_p, c_size_t],
    "pinning_queue_synchronize": [c_void_p],
    "pinning_event_done": [c_void_p, POINTER(c_int)],
    "pinning_event_wait": [c_void_p],
    "pinning_event_path": [c_void_p, POINTER(c_int)],
    "pinning_event_reason": [c_void_p, POINTER(c_int)],
    "pinning_event_destroy": [c_void_p],
}.items():
    getattr(_lib, _name).argtypes = _arguments


def call(function: str, *arguments: object) -> None:
    """Call a function of the library; raises StatusError."""
    status = STATUSES[getattr(_lib, function)(*arguments)]
    if status != "PINNING_OK":
        raise StatusError(status, _lib.pinning_last_error().decode())


class Map:
    """The process's map of a device."""

    def __init__(self, device: str) -> None:
        self._map = c_void_p()
        call("pinning_map_open", byref(self._map), device.encode())

    def lock(self, ptr: int, size: int) -> int:
        device_ptr = c_void_p()
        call("pinning_lock", self._map, ptr, size, byref(device_ptr))
        return device_ptr.value or 0

    def unlock(self, ptr: int) -> None:
        call("pinning_unlock", self._map, ptr)

    def register(self, ptr: int, size: int, device_ptr: int) -> None:
        call("pinning_register", self._map, ptr, size, device_ptr)

    def unregister(self, ptr: int) -> None:
        call("pinning_unregister", self._map, ptr)

    def refresh(self) -> None:
        call("pinning_refresh", self._map)

    def lock_mapped(self, ptr: int, size: int, policy: int) -> int:
        device_ptr = c_void_p()
        call("pinning_lock_mapped", self._map, ptr, size, policy, byref(device_ptr))
        return device_ptr.value or 0

    def unlock_unmapped(self, ptr: int) -> None:
        call("pinning_unlock_unmapped", self._map, ptr)

    def find(self, ptr: int, size: int = 1) -> Region | None:
        region = _Region()
        try:
            call("pinning_find", self._map, ptr, size, byref(region))
        except StatusError:
            return None
        return _named(region)

    def regions(self) -> list[Region]:
        count = c_size_t()
        call("pinning_regions", self._map, None, 0, byref(count))
        found = (_Region * count.value)()
        call("pinning_regions", self._map, found, count.value, byref(count))
        return [_named(region) for region in found]

    def copy(self, dst: int, src: int, size: int) -> None:
        call("pinning_copy", self._map, dst, src, size)

    def copy_async(self, dst: int, src: int, size: int, stream: int | None = None) -> Copy:
        copy = c_void_p()
        call("pinning_copy_async", self._map, dst, src, size, stream, byref(copy))
        return Copy(copy)

    def copy_batch(self, *batch: object) -> None:
        """`batch`: the addresses of both ends, and the sizes, as arrays of uint64."""
        call("pinning_copy_batch", self._map, *_arrays(*batch))

    def copy_batch_async(self, stream: int, *batch: object) -> Copy:
        copy = c_void_p()
        call("pinning_copy_batch_async", self._map, *_arrays(*batch), stream, byref(copy))
        return Copy(copy)


class _End:
    """What can be asked of an operation, by functions of this prefix."""

    _prefix: str

    def __init__(self, handle: c_void_p) -> None:
        self.handle = handle

    @property
    def path(self) -> CopyPath:
        return tuple(CopyPath)[self._asked("path")]

    @property
    def reason(self) -> Reason:
        return tuple(Reason)[self._asked("reason")]

    def done(self) -> bool:
        return bool(self._asked("done"))

    def wait(self) -> None:
        call(f"{self._prefix}_wait", self.handle)

    def _asked(self, what: str) -> int:
        answer = c_int()
        call(f"{self._prefix}_{what}", self.handle, byref(answer))
        return answer.value


class Copy(_End):
    """A copy that is under way; wait for it once."""

    _prefix = "pinning_copy"


class Event(_End):
    """The end of an operation in a `Queue`; freed with this object."""

    _prefix = "pinning_event"

    def __del__(self) -> None:
        call("pinning_event_destroy", self.handle)


class Queue:
    """A queue of a device, or over a stream."""

    def __init__(self, device: str, stream: int | None = None, ordered: bool = True) -> None:
        opened = c_void_p()
        call("pinning_map_open", byref(opened), device.encode())
        self._queue = c_void_p()
        if stream is None:
            call(f"pinning_queue_create{'' if ordered else '_out_of_order'}", opened, byref(self._queue))
        else:
            call("pinning_queue_adopt", opened, stream, byref(self._queue))

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *error: object) -> None:
        if self._queue:
            self.destroy()

    def destroy(self) -> None:
        queue, self._queue = self._queue, c_void_p()
        call("pinning_queue_destroy", queue)

    def copy(self, dst: int, src: int, size: int, wait_for: Sequence[Event] = ()) -> Event:
        return self._submit("copy", dst, src, size, wait_for=wait_for)

    def copy_2d(self, *rows: int, wait_for: Sequence[Event] = ()) -> Event:
        return self._submit("copy_2d", *rows, wait_for=wait_for)

    def copy_batch(self, *batch: object, wait_for: Sequence[Event] = ()) -> Event:
        """`batch`: the addresses of both ends, and the sizes, as arrays of uint64."""
        return self._submit("copy_batch", *_arrays(*batch), wait_for=wait_for)

    def copy_without_event(self, dst: int, src: int, size: int) -> None:
        call("pinning_queue_copy", self._queue, dst, src, size, None, 0, None)

    def record(self) -> Event:
        event = c_void_p()
        call("pinning_queue_record", self._queue, byref(event))
        return Event(event)

    def wait_for(self, *events: Event) -> None:
        call("pinning_queue_wait", self._queue, _handles(events), len(events))

    def synchronize(self) -> None:
        call("pinning_queue_synchronize", self._queue)

    def _submit(self, copy: str, *arguments: object, wait_for: Sequence[Event]) -> Event:
        event = c_void_p()
        waits = _handles(wait_for), len(wait_for)
        call(f"pinning_queue_{copy}", self._queue, *arguments, *waits, byref(event))
        return Event(event)


def _handles(events: Sequence[Event]) -> ctypes.Array[c_void_p] | None:
    return (c_void_p * len(events))(*[event.handle for event in events]) if events else None


def _arrays(dsts: Any, srcs: Any, sizes: Any) -> tuple[int, int, int, int]:
    return dsts.ctypes.data, srcs.ctypes.data, sizes.ctypes.data, dsts.size


def _named(region: _Region) -> Region:
    return Region(region.start, region.size, region.device_ptr, region.piece, region.references, region.external)

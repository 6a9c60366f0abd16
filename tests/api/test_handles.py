# SPDX-License-Identifier: Apache-2.0
"""No handle can be copied or pickled: what it owns would have two owners."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pytest

import pinning
from fake_memory import FakeMemoryDevice
from pinning import arrays, nixl
from pinning.locking.store import ObjectLocks
from pinning.queues import Event


class Agent:
    """A NIXL agent that does nothing."""

    def register_memory(self, *arguments: object, **more: object) -> object:
        return object()

    def deregister_memory(self, *arguments: object, **more: object) -> None:
        pass

    def get_xfer_descs(self, *arguments: object) -> None:
        pass


class Handles:
    """One handle of each kind that the package gives out, by its class; `with` ends those that need it."""

    def __init__(self, folder: Path) -> None:
        self.stack = ExitStack()
        self.device = FakeMemoryDevice(held=False)
        self.memory = bytearray(4096)
        self.file = folder / "file"
        self.file.write_bytes(bytes(4096))

    def __enter__(self) -> Handles:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def all(self) -> Iterator[Any]:
        enter, device, memory = self.stack.enter_context, self.device, self.memory
        yield pinning.device("host")
        yield pinning.pinned_map(device)
        yield pinning.pinned_map(device).add_registrar(lambda *_: None, lambda _: None)
        yield enter(pinning.lock(memory, device=device))
        yield enter(pinning.lock_async(memory, device=device))
        yield enter(pinning.Context(device))
        yield enter(pinning.alloc(100, "host", device=device))
        yield enter(pinning.alloc(100, "device", device=device))
        pool = enter(pinning.Pool(device))
        yield pool
        queue = enter(pinning.Queue(device))
        yield queue
        yield queue.record()
        yield Event()
        yield enter(queue.alloc(100, pool=pool)[0])
        yield pinning.copy_async(bytearray(10), bytes(10), queue=queue)
        yield pinning.copy_batch_async([bytearray(10)], [bytes(10)], queue=queue)
        yield pinning.copy_file_async(memory, self.file)
        arena = enter(pinning.Arena(1 << 20, devices=()))
        yield arena
        yield enter(arena.allocate(100))
        yield arrays.to_device(numpy.ones(10), device="host")
        agent = enter(nixl.AgentMemory(Agent(), device))
        yield agent
        yield enter(agent.lock([memory]))
        store: Any = ObjectLocks.__new__(ObjectLocks)  # without its thread
        yield store


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_no_handle_can_be_copied(tmp_path: Path, attempt: Callable[[Any], object]) -> None:
    with Handles(tmp_path) as handles:
        for handle in handles.all():
            with pytest.raises(TypeError, match=r"can be neither copied nor pickled: \w+") as raised:
                attempt(handle)
            assert str(raised.value).startswith(repr(handle)), type(handle)


def test_all_public_classes_of_handles_are_here(tmp_path: Path) -> None:
    """Values, such as regions and plans, can be copied; so can what only describes an interface."""
    values = {"Budget", "MemoryConnection", "MemoryKind", "PinnedInfo", "Region"}
    public = {name: getattr(pinning, name) for name in pinning.__all__}
    classes = {name for name, each in public.items() if isinstance(each, type) and not issubclass(each, Exception)}
    with Handles(tmp_path) as handles:
        covered = {cls.__name__ for handle in handles.all() for cls in type(handle).__mro__}
    assert classes - values - covered == set()

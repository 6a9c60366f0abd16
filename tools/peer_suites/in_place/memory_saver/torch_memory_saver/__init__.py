# SPDX-License-Identifier: Apache-2.0
"""Memory of pinning.torch that sleeps, under the names of torch_memory_saver, whose other modules stay its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy
import torch

from pinning.sleeping import _placed
from pinning.torch import sleep, sleepable, sleeping, wake

_theirs = PathFinder.find_spec(__name__, [each for each in sys.path if each != str(Path(__file__).parents[1])])
__path__ = list(_theirs.submodule_search_locations or ()) if _theirs else []


class Saver:
    """What is kept in the host, and what is not, are tags of their own here."""

    enabled = True
    hook_mode = "torch"
    memory_margin_bytes = 0

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def _name(self, tag: str, keep: bool) -> str:
        name = f"{tag}, {'kept' if keep else 'dropped'}"
        self._names.setdefault(tag, set()).add(name)
        return name

    def _names_of(self, tag: str | None) -> list[str]:
        of = self._names.values() if tag is None else [self._names.get(tag, set())]
        return [name for names in of for name in names]

    @contextmanager
    def region(self, tag: str = "default", enable_cpu_backup: bool = False, **how: Any) -> Iterator[None]:
        with sleepable(self._name(tag, enable_cpu_backup), keep=enable_cpu_backup):
            yield

    @contextmanager
    def cuda_graph(
        self, cuda_graph: Any, pool: Any = None, tag: str = "default", enable_cpu_backup: bool = False, **how: Any
    ) -> Iterator[None]:
        how.pop("cpu_backup_backend", None)
        with sleepable(self._name(tag, enable_cpu_backup), keep=enable_cpu_backup) as ours:
            graph_pool = ours.id if pool is None else pool
        with torch.cuda.graph(cuda_graph, pool=graph_pool, **how):
            yield

    @contextmanager
    def disable(self) -> Iterator[None]:
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            yield

    def pause(self, tag: str | None = None) -> None:
        for name in self._names_of(tag):
            sleep(name)

    def resume(self, tag: str | None = None) -> None:
        for name in self._names_of(tag):
            wake(name)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The bytes of a tensor that sleeps, in the host."""
        ptr = x.data_ptr()
        for tag in sleeping._tags.values():
            host = tag.parked._host
            for part in _placed(tag.parked._away) if host is not None else ():
                if part.ptr <= ptr < part.ptr + part.nbytes:
                    first = part.offset + ptr - part.ptr
                    found = torch.from_numpy(numpy.asarray(host)[first : first + x.nbytes]).view(x.dtype).view(x.shape)
                    return found if zero_copy else found.clone()
        return None


torch_memory_saver = Saver()
configure_subprocess = nullcontext  # nothing is preloaded

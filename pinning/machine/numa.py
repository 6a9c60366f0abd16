# SPDX-License-Identifier: Apache-2.0
"""Which memory is near which processor, and where pages are.

Containers forbid to say where memory shall be (mbind, set_mempolicy). But a page comes from the node of the processor
that touches it first, if that has one to give.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pinning.plugin import Device

_PAGE = mmap.PAGESIZE
_SAMPLES = 4096  # pages to ask for: 1 ms

_libc = ctypes.CDLL(None, use_errno=True)


def nodes(root: Path = Path("/sys/devices/system/node")) -> dict[int, frozenset[int]]:
    """The nodes of this machine, each with its processors; none where the system does not tell."""
    found = {}
    for folder in root.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            found[int(folder.name[4:])] = frozenset(_numbers((folder / "cpulist").read_text("utf-8")))
    return dict(sorted(found.items()))


def usable_cpus(node: int | None) -> frozenset[int]:
    """The processors that this process may use, of one node where that has any of them; None: of all."""
    allowed = frozenset(os.sched_getaffinity(0))
    return allowed & nodes().get(node, frozenset()) or allowed if node is not None else allowed


def usable_memory(status: Path = Path("/proc/self/status")) -> frozenset[int] | None:
    """The nodes from which this process may have memory (its cpuset); None where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return frozenset(_numbers(status.read_text("utf-8").partition("Mems_allowed_list:")[2].split()[0]))
    return None


def node_of(device: Device, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The node that a device is near, where it says where it is (a `LocatedDevice`); None where that is unknown."""
    address: str | None = getattr(device, "pci_address", None)
    with suppress(OSError, ValueError):
        if address is not None and (node := int((root / address / "numa_node").read_text("utf-8"))) >= 0:
            return node
    return None


class Obstacle(NamedTuple):
    """Why memory cannot be near a device, and what to do about it."""

    why: str
    remedy: str


def obstacle(node: int) -> Obstacle | None:
    """What keeps this process from having memory of a node, or processors near it; None where nothing does."""
    memory = usable_memory()
    if memory is not None and node not in memory:
        return Obstacle(
            f"this process may have no memory of node {node} (cpuset)",
            f"numactl --membind={node} COMMAND  # in a container: its --cpuset-mems",
        )
    if not nodes().get(node, frozenset()) & os.sched_getaffinity(0):
        return Obstacle(
            f"this process may run on no processor of node {node}, so memory that it touches comes from elsewhere",
            f"numactl --cpunodebind={node} COMMAND  # in a container: its --cpuset-cpus",
        )
    return None


def placement(ptr: int, size: int) -> dict[int, int]:
    """Bytes by node of a range, as far as its pages are in memory; of a large range by samples.

    Empty where no page is in memory, or the kernel does not tell (a container's rules against move_pages).
    """
    first, last = ptr // _PAGE, (ptr + size - 1) // _PAGE
    count = min(last - first + 1, _SAMPLES)
    pages = [(first + (last - first) * each // max(count - 1, 1)) * _PAGE for each in range(count)]
    addresses = (ctypes.c_void_p * count)(*pages)
    where = (ctypes.c_int * count)()
    # Without nodes to move to it only tells.
    if _libc.syscall(_MOVE_PAGES, 0, ctypes.c_ulong(count), addresses, None, where, 0) != 0:
        return {}
    found: dict[int, int] = {}
    for node in where:
        if node >= 0:
            found[node] = found.get(node, 0) + 1
    return {node: number * size // count for node, number in sorted(found.items())}


_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}.get(os.uname().machine, -1)


def _numbers(text: str) -> list[int]:
    """What the kernel writes as ``0-3,8``."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found += range(int(low), int(high or low) + 1)
    return found

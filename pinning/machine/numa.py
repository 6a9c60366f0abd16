# SPDX-License-Identifier: Apache-2.0
"""NUMA: which memory is near which processor, and on which node pages are.

Containers forbid choosing the node of memory (mbind, set_mempolicy). But a page comes from the node of the processor
that touches it first, if that node has a free one.
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
_SAMPLES = 4096  # pages to query: takes 1 ms

_libc = ctypes.CDLL(None, use_errno=True)


def nodes(root: Path = Path("/sys/devices/system/node")) -> dict[int, frozenset[int]]:
    """The nodes of this machine, each with its processors; empty if the system does not report them."""
    found = {}
    for folder in root.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            found[int(folder.name[4:])] = frozenset(_numbers((folder / "cpulist").read_text("utf-8")))
    return dict(sorted(found.items()))


def usable_cpus(node: int | None) -> frozenset[int]:
    """The processors that this process may use: those of `node`, or all if it is None or has none of them."""
    allowed = frozenset(os.sched_getaffinity(0))
    return allowed & nodes().get(node, frozenset()) or allowed if node is not None else allowed


def usable_memory(status: Path = Path("/proc/self/status")) -> frozenset[int] | None:
    """The nodes from which this process may get memory (its cpuset); None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return frozenset(_numbers(status.read_text("utf-8").partition("Mems_allowed_list:")[2].split()[0]))
    return None


def node_of(device: Device, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The node that a device is near; None if unknown, as for a device without `pci_address`."""
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
    """What prevents this process from using memory or processors of a node; None if nothing does."""
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
    """Bytes of a range by node, counting only pages in memory; a large range is sampled.

    Empty if no page is in memory, or the kernel does not say (in a container that forbids move_pages).
    """
    first, last = ptr // _PAGE, (ptr + size - 1) // _PAGE
    count = min(last - first + 1, _SAMPLES)
    pages = [(first + (last - first) * each // max(count - 1, 1)) * _PAGE for each in range(count)]
    addresses = (ctypes.c_void_p * count)(*pages)
    where = (ctypes.c_int * count)()
    # Without target nodes, move_pages only reports where pages are.
    if _libc.syscall(_MOVE_PAGES, 0, ctypes.c_ulong(count), addresses, None, where, 0) != 0:
        return {}
    found: dict[int, int] = {}
    for node in where:
        if node >= 0:
            found[node] = found.get(node, 0) + 1
    return {node: number * size // count for node, number in sorted(found.items())}


_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}.get(os.uname().machine, -1)


def _numbers(text: str) -> list[int]:
    """Parse a list of numbers that the kernel writes as ``0-3,8``."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found += range(int(low), int(high or low) + 1)
    return found

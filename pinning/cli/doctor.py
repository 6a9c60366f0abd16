# SPDX-License-Identifier: Apache-2.0
"""What `pinning doctor` finds out; `doctor_view` shows it."""

from __future__ import annotations

import mmap
import os
import platform
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import pinning
from pinning.arena.names import abandoned, path_of
from pinning.cli.bench import CopyRow, copies
from pinning.cli.machine import description, fit, tightest_memory
from pinning.cli.output import Step
from pinning.cli.units import size as bytes_text
from pinning.interop.memory_of import host_buffer
from pinning.locking.devices import PluginReport, is_host, unused
from pinning.machine import numa, topology
from pinning.machine.populate import huge_page_mode
from pinning.machine.room import Room, cgroup_memory, system_memory
from pinning.map.pinned_map import hears_of_calls, watch_problem
from pinning.plugin import Device, Library, LockLimit, MemoryDevice
from pinning.plugin.locking import lock_limit_of

T = TypeVar("T")

# MADV_POPULATE_READ and _WRITE, which populate many pages per call.
_POPULATES_SINCE = (5, 14)
_MEASURED = (1 << 20, 16 << 20, 256 << 20)  # bytes of a copy


@dataclass(frozen=True)
class PluginRow:
    """An installed plugin: the vendor's library, the names of its devices or why there are none, what is wrong with it.

    `library` is None if there is none to load, or if the plugin does not report it.
    """

    name: str
    library: Library | None
    devices: list[str]
    problem: str | None
    warnings: list[str]


@dataclass(frozen=True)
class DeviceRow:
    """A device: whether it locked one page just now, and how much it lets this process lock (None: no limit).

    `numa_node` is the nearest node; `pci_address` and `link` are its place and link on the PCI bus. None if unknown.
    """

    name: str
    description: str
    default: bool
    locks: bool
    problem: str | None
    limit: LockLimit | None
    numa_node: int | None
    pci_address: str | None
    link: topology.Link | None


@dataclass(frozen=True)
class PairRow:
    """Two devices that have memory: the second one's access to the first one's memory, and how they are connected.

    `connection` is the name of a `MemoryConnection`, None if the vendor does not report it. `link` is the vendor's
    name for its own links between the two. `way` is the nearest thing that they share: a ``"switch"``, a
    ``"host bridge"``, a ``"node"`` or just the ``"machine"``.
    """

    first: str
    second: str
    connection: str | None
    link: str | None
    way: str | None


@dataclass(frozen=True)
class Advice:
    """What would make locking possible, or faster, and the command for it."""

    why: str
    command: str


@dataclass(frozen=True)
class DoctorReport:
    """What matters on this machine for locking memory."""

    version: str
    python: str
    kernel: str
    plugins: list[PluginRow]
    devices: list[DeviceRow]
    pairs: list[PairRow]
    budget: pinning.Budget
    memory: Room
    control_groups: list[Room]
    huge_pages: str
    numa_nodes: int
    unwatched: str | None  # why the kernel does not report memory that is freed while locked; None if it does
    preloaded: bool  # whether libc calls that free it are intercepted
    advice: list[Advice]
    copies: dict[str, list[CopyRow]]  # by device; empty unless they were measured

    @property
    def ok(self) -> bool:
        """Whether some device can lock memory."""
        return any(row.locks for row in self.devices)


def run() -> DoctorReport:
    """Examine the machine and lock a page on each device. Failures are part of the report."""
    present = pinning.devices()
    default = None
    with suppress(Exception):  # of any type: third parties write plugins
        default = pinning.default_device()
    rows = [_device(device, default=device is default) for device in present]
    addresses = {row.name: row.pci_address for row in rows}
    groups = list(cgroup_memory())
    return DoctorReport(
        version=version("pinning"),
        python=platform.python_version(),
        kernel=platform.release(),
        plugins=[_plugin(each) for each in pinning.plugins()],
        devices=rows,
        pairs=[
            _pair(*pair, addresses) for pair in combinations(filter(_has_memory, present), 2) if _of_one_vendor(*pair)
        ],
        budget=pinning.budget(),
        memory=system_memory(),
        control_groups=groups,
        huge_pages=huge_page_mode(),
        numa_nodes=len(numa.nodes()),
        unwatched=watch_problem(),
        preloaded=hears_of_calls(),
        advice=[
            *(*_unused(), *_limits(rows), *_memory(groups), *_places(rows), *_links(rows)),
            *(*_shared_memory(), *_segments(), *_pages()),
        ],
        copies={},
    )


def measure(step: Step) -> dict[str, list[CopyRow]]:
    """Measure copies of each device but the host, or of the host if it is alone."""
    present = pinning.devices()
    measured = {}
    for device in [each for each in present if not is_host(each)] or present:
        largest, _ = fit(device, _MEASURED[-1], 1, mmap.PAGESIZE)
        measured[device.name] = copies(device, [*(size for size in _MEASURED if size < largest), largest], 3, step)
    return measured


def _plugin(report: PluginReport) -> PluginRow:
    row = PluginRow(report.name, None, [each.name for each in report.devices], report.problem, [])
    plugin: Any = report.plugin
    library = None
    warnings: list[str] = []
    try:
        warnings += getattr(plugin, "warnings", list)()
        library = getattr(plugin, "library", lambda: None)()
    except Exception as error:  # of any type: third parties write plugins
        if report.problem is None:
            warnings.append(f"it does not report which library it uses: {str(error) or type(error).__name__}")
    return replace(row, library=library, warnings=warnings)


def _device(device: Device, default: bool) -> DeviceRow:
    problem: str | None = None

    def told(ask: Callable[[], T], otherwise: T) -> T:
        nonlocal problem
        try:
            return ask()
        except Exception as error:  # of any type: third parties write plugins
            problem = problem or str(error) or type(error).__name__
            return otherwise

    try:
        page = mmap.mmap(-1, mmap.PAGESIZE)
        with pinning.lock(page, device=device):
            if device.is_pinned_ptr(host_buffer(page).ptr) is None:
                problem = "it locked a page without an error, but reports that the page is not pinned"
    except Exception as error:  # of any type: third parties write plugins
        problem = str(error) or type(error).__name__
    address: str | None = told(lambda: getattr(device, "pci_address", None), None)
    said = told(lambda: description(device), device.name)
    limit = told(lambda: lock_limit_of(device), None)
    node = told(lambda: numa.node_of(device), None)
    link = topology.link_of(address)
    return DeviceRow(device.name, said, default, problem is None, problem, limit, node, address, link)


def _has_memory(device: Device) -> bool:
    try:
        return isinstance(device, MemoryDevice) and not is_host(device)
    except Exception:  # of any type: third parties write plugins
        return False


def _of_one_vendor(first: Device, second: Device) -> bool:
    # Several plugins may offer the same GPU, and copies between vendors go through the host in any case.
    return first.vendor == second.vendor


def _pair(first: Device, second: Device, addresses: dict[str, str | None]) -> PairRow:
    connection = link = None
    with suppress(Exception):  # of any type: third parties write plugins
        connection = pinning.memory_connection(first, second).name
    with suppress(Exception):
        link = getattr(first, "link_to", lambda _: None)(second)
    places = [addresses[device.name] for device in (first, second)]
    return PairRow(first.name, second.name, connection, link, topology.way_between(*places))


def _unused() -> Iterator[Advice]:
    for hardware, problem in unused(pinning.plugins()):
        why, colon, remedy = problem.rpartition(": ")
        yield Advice(f"{hardware} is not used: {why}" if colon else f"{hardware} is not used", remedy)


def _limits(rows: list[DeviceRow]) -> Iterator[Advice]:
    for limit in {row.limit for row in rows if row.limit}:
        free = max(limit.limit - limit.used, 0)
        yield Advice(f"{limit.name} leaves {bytes_text(free)} to lock", limit.remedy)


def _memory(groups: list[Room]) -> Iterator[Advice]:
    tightest = tightest_memory()
    for room in groups:
        if room == tightest:
            yield Advice(f"{room.name} leaves {bytes_text(max(room.free, 0))}", room.remedy)


def _places(rows: list[DeviceRow]) -> Iterator[Advice]:
    for node in sorted({row.numa_node for row in rows if row.numa_node is not None}):
        if found := numa.obstacle(node):
            near = ", ".join(row.name for row in rows if row.numa_node == node)
            yield Advice(f"{near} is near node {node}, but {found.why}", found.remedy)


def _links(rows: list[DeviceRow]) -> Iterator[Advice]:
    for row in rows:
        if row.link and row.link.lanes < row.link.most_lanes:
            share = row.link.lanes / row.link.most_lanes
            yield Advice(
                f"{row.name} has {row.link.lanes} of its {row.link.most_lanes} PCIe lanes, so copies run at "
                f"{share:.0%} of the possible rate; the cause may be a narrower slot, a riser or a firmware setting",
                f"sudo lspci -vv -s {row.pci_address} | grep -E 'LnkCap|LnkSta'",
            )


def _shared_memory() -> Iterator[Advice]:
    folder = Path("/dev/shm")
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
        yield Advice(
            f"no file can be created in {folder}, so shared memory and named arenas are refused",
            f"sudo mount -o remount,rw {folder}  # in a container: mount a writable one, such as --tmpfs {folder}",
        )


def _segments() -> Iterator[Advice]:
    for name, size in abandoned():
        why = f"killed processes have left behind the arena {name!r}, {bytes_text(size)} of memory that no process uses"
        yield Advice(why, f"rm {shlex.quote(str(path_of(name)))}  # the next named arena does this too")


def _pages() -> Iterator[Advice]:
    if huge_page_mode() == "never":
        yield Advice(
            "untouched memory locks faster with huge pages, which are off",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    numbers = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
    if numbers < _POPULATES_SINCE:
        yield Advice("Linux 5.14 and later populate untouched memory faster", "uname -r  # then upgrade the kernel")

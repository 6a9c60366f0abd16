# SPDX-License-Identifier: Apache-2.0
"""The plugins that are installed, the devices they find, and one map for each device."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from pinning.errors import ArgumentError, PinningError, PluginUnavailableError
from pinning.map.adapters import is_native
from pinning.map.pinned_map import PinnedMap, Region
from pinning.plugin import ENTRY_POINT_GROUP, Device, LockDevice, MemoryDevice, Plugin
from pinning.runtime.arguments import describe, flag
from pinning.runtime.per_device import PerDevice
from pinning.runtime.process import at_fork

HOST = "host"

# A child that is forked while another thread imports a plugin would wait for that import forever. So a fork waits for
# it, but holds no lock then: other fork handlers may wait for threads that are about to look for devices.
_loading = threading.RLock()
_loader: int | None = None  # the thread that holds it
_cut_short = False  # another thread was loading at the moment of the fork


def _wait_for_loads() -> None:
    with _loading:
        pass


def _begin_anew() -> None:
    global _loading, _cut_short
    _cut_short = _loader not in (None, threading.get_ident())
    _loading = threading.RLock()


at_fork(_begin_anew, before=_wait_for_loads)

# Of errors that say nothing about the plugins. They may pass, so nothing that is found during them is kept.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class PluginReport(NamedTuple):
    """The result of loading an installed plugin.

    Attributes
    ----------
    name : str
        The name of its entry point.
    devices : tuple of Device
        The devices present.
    problem : str or None
        Why there are none.
    plugin : Plugin or None
        The plugin itself; None if it does not load.
    """

    name: str
    devices: tuple[Device, ...]
    problem: str | None
    plugin: Plugin | None


def _entries() -> list[tuple[str, str]]:
    """The name and the target of each entry point in the group of plugins."""
    try:
        return list(_entries_in_folders())
    except NotADirectoryError:
        from importlib.metadata import entry_points

        return [(entry.name, entry.value) for entry in entry_points(group=ENTRY_POINT_GROUP)]


def _entries_in_folders() -> Iterator[tuple[str, str]]:
    """What importlib.metadata would find; its import alone takes as long as all else up to the first device.

    Raises NotADirectoryError if distributions may be elsewhere than in folders.
    """
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        raise NotADirectoryError
    seen = set()
    for folder in sys.path:
        if not isinstance(folder, str):  # a mistake; Python imports nothing from it
            continue
        if folder.endswith(".egg"):
            raise NotADirectoryError
        try:
            with os.scandir(folder or ".") as inside:
                names = [each.name for each in inside]
        except OSError as error:
            if isinstance(error, NotADirectoryError) or error.errno in _EXHAUSTED:
                raise
            continue
        for name in names:
            stem, _, kind = name.rpartition(".")
            distribution = stem.partition("-")[0].lower().replace(".", "_")
            if kind in ("dist-info", "egg-info") and distribution not in seen:
                seen.add(distribution)
                yield from _entries_of(Path(folder, name, "entry_points.txt"))


def _entries_of(file: Path) -> Iterator[tuple[str, str]]:
    try:
        text = file.read_text("utf-8")
    except OSError as error:  # most have none
        if error.errno in _EXHAUSTED:
            raise
        return
    section = ""
    for line in map(str.strip, text.splitlines() if ENTRY_POINT_GROUP in text else ()):
        if line.startswith("["):
            section = line
        elif section == f"[{ENTRY_POINT_GROUP}]" and not line.startswith("#"):
            name, equals, target = line.partition("=")
            if equals:
                yield name.strip(), target.strip()


loaded: dict[str, list[PluginReport]] = {}  # by the name of the entry point, which several distributions may share


def _load(name: str | None = None) -> None:
    """Load the plugins of this name (by default all) that are not loaded yet."""
    global _loader
    if _cut_short:
        raise PluginUnavailableError(
            f"process {os.getpid()} was forked while another thread of its parent imported plugins, and such an import "
            "cannot be completed here: call pinning.devices() before the fork, or start processes by exec"
        )
    with _loading:
        outer, _loader = _loader, threading.get_ident()
        try:
            entries = _entries()
            for each in dict.fromkeys(found for found, _ in entries):
                if name in (None, each) and each not in loaded:
                    loaded[each] = [_report(each, target) for found, target in entries if found == each]
        except OSError as error:
            raise PluginUnavailableError(
                f"the installed plugins cannot be read now: {error}; close files, or raise `ulimit -n`"
            ) from error
        finally:
            _loader = outer


@cache
def plugins() -> tuple[PluginReport, ...]:
    """All installed plugins, the host's last; one that does not load is reported, not fatal. Cached.

    Raises
    ------
    PluginUnavailableError
        This process was forked while another thread imported plugins, which cannot be completed here.
    """
    _load()
    names = sorted(loaded, key=lambda name: (name == HOST, name))
    reports = tuple(report for name in names for report in loaded[name])
    if not any(report.devices for report in reports if report.name != HOST):
        for hardware, problem in unused(reports):
            text = f"the host is the default device, though there is {hardware} here: {problem}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return reports


def _reports_of(name: str) -> list[PluginReport]:
    """The reports of the plugins of this name. No other plugin is loaded, and so no other vendor's library."""
    if name not in loaded and not plugins.cache_info().currsize:
        _load(name)
    return loaded.get(name, [])


def unused(reports: tuple[PluginReport, ...]) -> list[tuple[str, str]]:
    """Hardware in the machine that no plugin finds, and why its own plugin does not."""
    detected = [(report, _hardware(report.plugin)) for report in reports]
    used = {hardware for report, hardware in detected if report.devices}
    return [(hardware, report.problem or "") for report, hardware in detected if hardware and hardware not in used]


def devices() -> list[Device]:
    """All devices of all plugins, the host last."""
    return [device for report in plugins() for device in report.devices]


def device(name: Device | str) -> Device:
    """The device of this name, such as ``"cuda:0"``; ``"cuda"`` is the first of its plugin.

    Only the plugin of this name is loaded, unless it has no such device.

    Parameters
    ----------
    name : str
        A plugin, and optionally the index of one of its devices. A Device is returned unchanged.

    Raises
    ------
    PluginUnavailableError
        There is no such device; the message says why, or lists those present.
    ArgumentError
        There is no plugin of that name, or what follows the colon is not an index.
    TypeError
        Neither a name nor a device.
    """
    if not isinstance(name, str):
        if callable(getattr(name, "data_lock", None)):
            return name
        raise TypeError(
            f"{describe(name)} is not a device; give a name, such as {default_device().name!r}, or a Device"
        )
    plugin_name, colon, index = name.partition(":")
    wanted = name if colon else f"{name}:0"
    own = _device_in(_reports_of(plugin_name), wanted)
    if own is not None:
        return own
    other = _device_in(plugins(), wanted)  # an entry point may have another name than its devices
    if other is not None:
        return other
    own_reports = [report for report in plugins() if report.name == plugin_name]
    present = f"those present are {', '.join(device.name for device in devices())}"
    if not own_reports:
        known = ", ".join(dict.fromkeys(report.name for report in plugins()))
        raise ArgumentError(
            f"there is no device {name!r}, nor a plugin {plugin_name!r}: {present}, and plugins {known}"
        )
    if colon and not re.fullmatch("0|[1-9][0-9]*", index):
        raise ArgumentError(f"there is no device {name!r}: give an index, as in {plugin_name + ':0'!r}; {present}")
    problem = next((report.problem for report in own_reports if report.problem), present)
    raise PluginUnavailableError(f"there is no device {name!r}: {problem}")


def _device_in(reports: Iterable[PluginReport], name: str) -> Device | None:
    for report in reports:
        for device in report.devices:
            if device.name == name:
                return device
    return None


def default_device() -> MemoryDevice:
    """The device of locks, queues and memory if none is named: the first that is not the host, can lock memory and has
    queues, or else the host.
    """
    found: list[Any] = devices()
    return next(filter(_is_able, found), found[-1])  # type: ignore[no-any-return]


def _is_able(device: Any) -> bool:
    try:
        return getattr(device, "can_lock", True) and hasattr(device, "make_queue")
    except Exception as error:  # of any type: third parties write plugins
        if isinstance(error, (MemoryError, PinningError)) or getattr(error, "errno", None) in _EXHAUSTED:
            raise  # it may pass, and must not change where memory is locked from now on
        return False


_device = device  # for functions with a parameter of that name


def pinned_map(device: LockDevice | str | None = None) -> PinnedMap:
    """The map of a device, by default of the default device. There is one for each, made on demand.

    For a native device it is the map that native code of this process has under the device's name.

    Parameters
    ----------
    device : LockDevice or str, optional
        The device or its name.

    Raises
    ------
    PluginUnavailableError
        There is no device of this name.

    Examples
    --------
    >>> array = numpy.ones(1000)
    >>> with pinning.lock(array, device="host"):
    ...     array.ctypes.data in pinning.pinned_map("host")
    True
    """
    return maps.get(default_device() if device is None else _device(device))  # type: ignore[arg-type]


def pinned_maps() -> list[PinnedMap]:
    """The maps made so far, of devices that still exist, in the order of their first use."""
    return maps.all()


def separate(some: Iterable[PinnedMap]) -> list[PinnedMap]:
    """Of maps that share their regions only the first."""
    first: dict[int, PinnedMap] = {}
    for each in some:
        first.setdefault(each._domain, each)
    return list(first.values())


def regions(device: LockDevice | str | None = None, *, idle: bool = False) -> list[Region]:
    """All locked regions of a device, or of all devices, in address order for each; `find` is the one around a buffer.

    What one device of a vendor has locked for all of them is listed once, or for each device that is asked for.

    Parameters
    ----------
    device : Device or str, optional
        The device; all devices by default.
    idle : bool
        Also idle regions, which are registered and not locked, see `pinning.budget`.

    Examples
    --------
    >>> array = numpy.ones(1000)
    >>> with pinning.lock(array):
    ...     [region.size for region in pinning.regions()]
    [8000]
    """
    with_idle = flag(idle, "idle")
    wanted = separate(pinned_maps()) if device is None else [pinned_map(device)]
    return [region for each in wanted for region in (each.overlapping(1, 2**64 - 1, idle=True) if with_idle else each)]


maps: PerDevice[PinnedMap] = PerDevice(lambda device: PinnedMap(device, shared=is_native(device)))


def is_host(device: Device) -> bool:
    """Whether a device is the host's, whose memory no GPU reaches."""
    return device.vendor == HOST


def _hardware(plugin: Plugin | None) -> str | None:
    try:
        hardware: str | None = getattr(plugin, "hardware", lambda: None)()
        return hardware
    except Exception:  # of any type: third parties write plugins
        return None


def _report(name: str, target: str) -> PluginReport:
    plugin: Any = None
    try:
        module, _, attribute = target.partition("[")[0].replace(" ", "").partition(":")
        plugin = import_module(module)
        if attribute:
            plugin = attrgetter(attribute)(plugin)
        present = tuple(plugin.device(index) for index in range(plugin.device_count()))
        if not all(each.name for each in present):
            raise ValueError("a device has no name")
    except PluginUnavailableError as error:
        return PluginReport(name, (), str(error), plugin)
    except (Exception, SystemExit) as error:  # a broken plugin must not take the others down
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED:
            raise
        return PluginReport(name, (), f"{type(error).__name__}: {error}", plugin)
    return PluginReport(name, present, None if present else "it finds no device", plugin)

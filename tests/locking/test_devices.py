# SPDX-License-Identifier: Apache-2.0
"""Plugins found through entry points, sound and broken, and their devices and maps."""

from __future__ import annotations

import copy
import gc
import importlib.metadata
import os
import re
import resource
import shutil
import subprocess
import sys
import textwrap
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import pinning
import pinning_ur
from child_process import run_in_child
from fake_device import Background, FakeDevice
from folders import PYTHONPATH
from pinning import ArgumentError, PluginUnavailableError
from pinning.locking.devices import PluginReport
from pinning.plugin import ENTRY_POINT_GROUP, Device

Install = Callable[..., None]
VENDORS = {"cuda", "hip", "hsa", "ur"}  # whose devices this machine may have

SOUND = """
from fake_device import FakeDevice

class Plugin:
    name = "{name}"
    def __init__(self):
        self.found = [FakeDevice(f"{name}:{{index}}") for index in range({count})]
    def device_count(self):
        return len(self.found)
    def device(self, index):
        return self.found[index]

plugin = Plugin()
"""
UNAVAILABLE = """
from pinning.errors import PluginUnavailableError

class plugin:
    name = "gone"
    @staticmethod
    def device_count():
        raise PluginUnavailableError("libgone.so.1 is missing: install gone-driver")
    @staticmethod
    def hardware():
        return "a Gone GPU"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that makes distributions with a plugin, as pip would have installed them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def make(name: str, source: str | None, target: str = "{module}:plugin") -> None:
        module = f"announced_{name}"
        if source is not None:
            (tmp_path / f"{module}.py").write_text(source)
        announce(tmp_path, module, f"{name} = {target.format(module=module)}")
        look_again()

    look_again()
    yield make
    for module in set(sys.modules) - before:
        if module.startswith("announced_"):
            del sys.modules[module]
    look_again()


def announce(folder: Path, module: str, entry: str) -> None:
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{entry}\n")


def look_again() -> None:
    pinning.plugins.cache_clear()
    sys.modules["pinning.locking.devices"].loaded = {}  # type: ignore[attr-defined]


def report_of(name: str) -> PluginReport:
    (report,) = (report for report in pinning.plugins() if report.name == name)
    return report


def test_the_host_is_always_there_and_last() -> None:
    reports = pinning.plugins()
    assert reports[-1].name == "host"
    assert reports[-1].problem is None
    assert [device.name for device in reports[-1].devices] == ["host:0"]
    assert pinning.devices()[-1].name == "host:0"
    assert isinstance(pinning.devices()[-1], Device)
    assert pinning.device("host") is pinning.device("host:0") is pinning.devices()[-1]


def test_plugins_are_those_of_importlib_metadata(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own reader of these files must follow its rules: first match, comments, other groups, extras."""
    first = tmp_path / "first"
    for folder, name in (
        (first / "Two.Names-2.dist-info", "two"),
        (tmp_path / "two_names-1.dist-info", "hidden"),
        (tmp_path / "two_names.egg-info", "hidden"),
        (tmp_path / "old_egg.egg-info", "egg"),
        (tmp_path / "backup.dist-info.bak", "none"),
    ):
        folder.mkdir(parents=True)
        ours = [f"[{ENTRY_POINT_GROUP}]", "# c = d:e", "", f" {name}= announced_both:of.us [more]"]
        other = ["[other]", "no = no:no"]
        (folder / "entry_points.txt").write_text("\n".join([*other, *ours, *other]))
    (first / "announced_both.py").write_text(SOUND.format(name="two", count=1) + "class of:\n    us = plugin\n")
    monkeypatch.syspath_prepend(str(first))
    monkeypatch.setattr(sys, "path", [Path("not", "imported", "from"), *sys.path])
    monkeypatch.chdir(tmp_path)
    install("ape", SOUND.format(name="ape", count=1))
    found = {entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
    assert {report.name for report in pinning.plugins()} == found
    assert found >= {"two", "egg", "ape"}
    assert not found & {"hidden", "none", "no"}
    assert pinning.device("two").name == "two:0"


def test_a_plugin_in_an_archive_is_found(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("announced_zip.py", SOUND.format(name="zip", count=1))
        archive.writestr("zipped-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1\n")
        archive.writestr("zipped-1.dist-info/entry_points.txt", f"[{ENTRY_POINT_GROUP}]\nzip = announced_zip:plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path / "all.zip"))
    look_again()
    assert pinning.device("zip").name == "zip:0"


def test_without_descriptors_an_error_says_so_and_nothing_of_that_is_kept() -> None:
    def child() -> None:
        look_again()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for name in (None, "host"):
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # as if all were taken
            with pytest.raises(PluginUnavailableError, match="ulimit -n"):
                pinning.lock(bytearray(100), device=name)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        with pinning.lock(bytearray(100), device="host") as lock:
            assert lock.held

    run_in_child(child)


def test_a_plugin_that_lacked_a_descriptor_is_loaded_again(install: Install) -> None:
    moment = "import errno, sys\nif not hasattr(sys, 'had'):\n  sys.had = 1\n  raise OSError(errno.EMFILE, 'many')\n"
    install("scarce", moment + SOUND.format(name="scarce", count=1))
    try:
        with pytest.raises(PluginUnavailableError, match="ulimit -n"):
            pinning.device("scarce:0")
        assert pinning.device("scarce:0") in pinning.devices()
    finally:
        del sys.had  # type: ignore[attr-defined]


def test_a_third_partys_plugin_is_found_and_no_other_is_loaded_for_it(install: Install) -> None:
    install("zebra", SOUND.format(name="zebra", count=2))
    install("ape", SOUND.format(name="ape", count=1))
    first = pinning.device("zebra:1")
    assert first.name == "zebra:1"
    with pinning.lock(bytearray(10), device="zebra:1") as lock:
        assert lock.device is pinning.pinned_map("zebra:1").device is first
        assert len(pinning.regions("zebra:1")) == 1
        assert pinning.regions("zebra:0") == []
    assert "announced_zebra" in sys.modules
    assert "announced_ape" not in sys.modules
    assert first in pinning.devices(), "the same, once all are loaded"
    assert "announced_ape" in sys.modules
    assert [report.name for report in pinning.plugins() if report.name not in VENDORS] == ["ape", "zebra", "host"]
    names = [device.name for device in pinning.devices() if device.name.partition(":")[0] not in VENDORS]
    assert names == ["ape:0", "zebra:0", "zebra:1", "host:0"]
    assert pinning.device("zebra").name == "zebra:0"
    assert first is report_of("zebra").devices[1]
    assert pinning.devices() == pinning.devices(), "looked up once"


def test_a_device_that_its_plugin_does_not_have_may_be_another_plugins(install: Install) -> None:
    install("lion", SOUND.format(name="cat", count=1))
    assert pinning.device("cat:0") is report_of("lion").devices[0]
    with pytest.raises(PluginUnavailableError, match=r"those present are .*cat:0.*host:0"):
        pinning.device("lion:0")


BROKEN = {
    "no module": (None, "{module}:plugin", "ModuleNotFoundError: .*announced_broken"),
    "no such name": ("", "{module}:plugin", "AttributeError: .*plugin"),
    "syntax": ("def", "{module}:plugin", "SyntaxError"),
    "import fails": ("import no_such_binding", "{module}:plugin", "ModuleNotFoundError: .*no_such_binding"),
    "library fails": ("raise OSError('libx.so: no such file')", "{module}:plugin", "OSError: libx.so"),
    "no plugin": ("plugin = 7", "{module}:plugin", "AttributeError: .*device_count"),
    "count fails": ("class plugin:\n  def device_count(): raise RuntimeError('old')", "{module}:plugin", "Error: old"),
    "count is none": ("class plugin:\n  def device_count(): return None", "{module}:plugin", "TypeError"),
    "device fails": (
        "class plugin:\n  def device_count(): return 1\n  def device(index): raise ValueError(f'{index} fell off')",
        "{module}:plugin",
        "ValueError: 0 fell off",
    ),
    "device is none": (
        "class plugin:\n  def device_count(): return 1\n  def device(index): return None",
        "{module}:plugin",
        "AttributeError: .*name",
    ),
    "exits": ("import sys; sys.exit(3)", "{module}:plugin", "SystemExit: 3"),
    "no driver": (UNAVAILABLE, "{module}:plugin", r"^libgone.so.1 is missing: install gone-driver$"),
    "no devices": (SOUND.format(name="broken", count=0), "{module}:plugin", "no "),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_reported_and_never_fatal(install: Install, kind: str) -> None:
    source, target, problem = BROKEN[kind]
    install("broken", source, target)
    install("sound", SOUND.format(name="sound", count=1))
    report = report_of("broken")
    assert report.devices == ()
    assert report.problem is not None
    assert re.search(problem, report.problem)
    assert report_of("sound").problem is None
    assert report_of("host").problem is None
    for attempt in (lambda: pinning.device("broken:0"), lambda: pinning.lock(bytearray(10), device="broken:0")):
        with pytest.raises(PluginUnavailableError) as caught:
            attempt()
        assert report.problem in str(caught.value)
    with pinning.lock(bytearray(10), device="sound"):
        pass


@pytest.mark.parametrize(
    ("parts", "is_default"),
    [
        ("", False),  # it only locks
        (", can_lock=False, make_queue=lambda self: None", False),
        (", can_lock=property(lambda self: 1 / 0), make_queue=lambda self: None", False),
        (", can_lock=True, make_queue=lambda self: None", True),
    ],
)
def test_only_a_device_that_can_lock_and_has_queues_is_the_default(
    install: Install, parts: str, is_default: bool
) -> None:
    first = f"from fake_device import FakeDevice\nFakeDevice = type('Device', (FakeDevice,), dict(at=0{parts}))"
    install("aaa", SOUND.replace("from fake_device import FakeDevice", first).format(name="aaa", count=1))
    assert pinning.devices()[0].name == "aaa:0"
    assert (pinning.default_device().name == "aaa:0") is is_default
    with pinning.lock(numpy.ones(100), device="aaa") as lock:
        assert lock.device.name == "aaa:0"
    if not is_default:
        with pinning.lock(numpy.ones(100)) as lock, pinning.Queue() as queue, pinning.alloc(100) as memory:
            assert lock.device is queue.device is memory.device is pinning.default_device()


def test_a_device_that_cannot_tell_now_whether_it_locks_does_not_change_the_default(install: Install) -> None:
    first = """
from fake_device import FakeDevice as Fake
class FakeDevice(Fake):
    tells, make_queue = False, None
    @property
    def can_lock(self):
        if not self.tells:
            raise OSError(24, "Too many open files")
        return True
"""
    install("aaa", SOUND.replace("from fake_device import FakeDevice", first).format(name="aaa", count=1))
    with pytest.raises(OSError, match="Too many"):
        pinning.lock(numpy.ones(100))
    pinning.devices()[0].tells = True  # type: ignore[attr-defined]
    with pinning.lock(numpy.ones(100)) as lock:
        assert lock.device.name == "aaa:0"


@pytest.mark.parametrize("used", [False, True])
def test_hardware_that_is_not_used_is_told_of_once(
    install: Install, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    install("gone", UNAVAILABLE)
    if used:
        install("acme", SOUND.format(name="acme", count=1))
    module = sys.modules["pinning.locking.devices"]
    entries = [entry for entry in module._entries() if entry[0] not in VENDORS]
    monkeypatch.setattr(module, "_entries", lambda: tuple(entries))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            pinning.devices()
    said = [str(each.message) for each in caught]
    expected = "the host is the default device, though there is a Gone GPU here: " + (report_of("gone").problem or "")
    assert said == ([] if used else [expected])


@pytest.mark.parametrize("name", ["host:1", "nothing", "nothing:0", "", "host:0:0", "host:x", "host:"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(PluginUnavailableError if name == "host:1" else ArgumentError, match="host:0") as caught:
        pinning.device(name)
    assert repr(name) in str(caught.value)


def test_a_device_needs_no_plugin() -> None:
    device = FakeDevice()
    pinned = pinning.pinned_map(device)
    assert pinning.pinned_map(device) is pinned
    assert pinning.pinned_map(FakeDevice()) is not pinned, "as many maps as devices, whatever they are called"


def test_a_device_of_three_methods_is_enough() -> None:
    plain = SimpleNamespace(
        data_lock=lambda ptr, size, read_only: ptr, data_unlock=lambda ptr: None, is_pinned_ptr=lambda ptr: None
    )
    with pinning.lock(bytearray(10), device=plain) as lock:
        assert lock.device_ptr == lock.ptr
        assert "namespace" in repr(lock)


@pytest.mark.parametrize(
    ("device", "index"), [(pinning.device("host"), 0), (FakeDevice("host:3"), 3)], ids=["native", "Python"]
)
def test_vendor_and_index_are_the_parts_of_a_name(device: Device, index: int) -> None:
    assert (device.vendor, device.index) == ("host", index)


def test_threads_that_ask_for_a_map_get_one() -> None:
    for _ in range(50):
        device = FakeDevice()
        threads = [Background(lambda device=device: pinning.pinned_map(device)) for _ in range(4)]  # type: ignore[misc]
        assert len({id(thread.result()) for thread in threads}) == 1


def with_a_slow_plugin(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a plugin whose import sets an event and then takes a second."""
    slow = "import started\nstarted.event.set()\nimport time\ntime.sleep(1)\nplugin = 1\n"
    (folder / "slow_plugin.py").write_text(slow)
    (folder / "started.py").write_text("import threading\nevent = threading.Event()\n")
    announce(folder, "slow_plugin", "slow = slow_plugin:plugin")
    environment = os.environ | {"PYTHONPATH": str(folder)}
    # Python 3.12 warns about any fork of a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_fork_while_another_thread_loads_plugins(tmp_path: Path) -> None:
    """Otherwise the child would wait for an import that no thread continues."""
    program = """
import os, sys, threading, pinning, started
threading.Thread(target=pinning.plugins).start()
assert started.event.wait(60)
child = os.fork()
if child == 0:
    os._exit(7 if "slow" in [each.name for each in pinning.plugins()] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = with_a_slow_plugin(tmp_path, program)
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_a_handler_before_a_fork_waits_for_a_thread_that_loads_plugins(tmp_path: Path) -> None:
    """No lock is held over the fork; if it cut the load short, the child raises an error that says so."""
    program = """
import os, sys, threading, started
def before():
    thread = threading.Thread(target=pinning.plugins, daemon=True)
    thread.start()
    assert started.event.wait(60)
    if joins:
        thread.join()
os.register_at_fork(before=before)  # the handlers before a fork run in the reverse of the order in which they come
import pinning
for joins in [False, True]:
    child = os.fork()
    if child == 0:
        try:
            print(len(pinning.plugins()) > 1)
        except pinning.PluginUnavailableError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""
    done = with_a_slow_plugin(tmp_path, program)
    cut_short, whole = done.stdout.splitlines()
    assert "was forked while another thread of its parent imported plugins" in cut_short
    assert (whole, done.stderr) == ("True", "")


# ---- the maps of devices that come and go ----


ADDRESSES = """
def size():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
"""


def run_program(text: str, *before: str) -> str:
    command = [*before, sys.executable, "-W", "ignore", "-c", ADDRESSES + textwrap.dedent(text)]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "OPENBLAS_NUM_THREADS": "1"}
    program = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert program.returncode == 0, program.stderr
    return program.stdout


def test_a_map_goes_with_its_device() -> None:
    device = FakeDevice()
    with pinning.lock(bytearray(10), device=device):
        pass
    assert pinning.pinned_map(device) is pinning.pinned_map(device)
    gone = weakref.ref(pinning.pinned_map(device))
    of_copy = pinning.pinned_map(copy.copy(device))
    assert of_copy is not gone()
    del device, of_copy
    gc.collect()
    assert gone() is None


def test_a_map_stays_while_something_is_locked() -> None:
    buffer = bytearray(10)
    lock = pinning.lock(buffer, device=FakeDevice())
    gc.collect()
    assert pinning.is_locked(buffer)
    assert lock.held
    lock.unlock()
    assert not pinning.is_locked(buffer)


def test_a_device_without_attributes_has_a_map() -> None:
    methods = {
        "data_lock": lambda self, ptr, size, read_only: ptr,
        "data_unlock": lambda self, ptr: None,
        "is_pinned_ptr": lambda self, ptr: None,
    }
    device: Any = type("Bare", (), {"__slots__": (), "name": "bare:0", **methods})()
    pinned = pinning.pinned_map(device)
    with pinning.lock(bytearray(10), device=device):
        assert len(pinned) == 1
    assert pinning.pinned_map(device) is pinned


def test_many_devices_leave_addresses_to_the_program() -> None:
    said = run_program("""
        import mmap, pinning
        from fake_device import FakeDevice
        devices = [FakeDevice() for _ in range(1000)]
        locks = [pinning.lock(bytearray(100), device=device) for device in devices]
        free = mmap.mmap(-1, 1 << 40, mmap.MAP_PRIVATE | 0x4000, mmap.PROT_READ)
        print(all(lock.held for lock in locks), len(free) >> 40)
        for lock in locks:
            lock.unlock()
    """)
    assert said.split() == ["True", "1"]


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit of util-linux")
def test_the_first_lock_leaves_most_of_few_addresses() -> None:
    said = run_program(
        """
        import pinning
        pinning.devices()
        before = size()
        pinning.lock(bytearray(5000), device="host").unlock()
        pinning.alloc(5000, device="host").free()
        print(size() - before)
        """,
        "prlimit",
        f"--as={8 << 30}",
    )
    assert int(said) < 2 << 20, "KiB of 8 GiB"


def test_a_fork_of_a_fork_of_a_fork_takes_no_more_addresses() -> None:
    said = run_program("""
        import os, pinning
        from fake_device import FakeDevice
        device = FakeDevice()
        pinning.lock(bytearray(10), device="host").unlock()
        pinning.lock(bytearray(10), device=device).unlock()
        sizes, parent = [], os.getpid()
        for generation in range(8):
            if child := os.fork():
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) if sizes else os.waitpid(child, 0)
                break
            pinning.lock(bytearray(10), device="host").unlock()
            pinning.lock(bytearray(10), device=device).unlock()
            sizes.append(size())
        else:
            os.write(1, f"{(sizes[-1] - sizes[1]) >> 20}".encode())  # GiB
            os._exit(0)
    """)
    assert int(said) <= 0


def test_the_version_and_the_parts_are_there_after_the_import() -> None:
    assert pinning.__version__ == importlib.metadata.version("pinning")
    assert callable(pinning.arrays.pinned_array)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pinning.nonsense


def test_device_names_and_single_events_do() -> None:
    with pinning.Pool("host") as pool, pinning.Queue("host") as queue:
        memory, event = queue.alloc(100, pool=pool)
        pinning.copy_async(memory, bytes(100), queue=queue, wait_for=event).wait()
        queue.free(memory, event).wait()
    assert pinning.memory_info(numpy.zeros(3)) is None
    with pytest.raises((TypeError, ValueError), match="named by device="):
        pinning.alloc(100, "host:0")  # type: ignore[arg-type]


def test_unified_runtime_tells_of_intels_gpus_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, cards = tmp_path / "dri", tmp_path / "drm"
    nodes.mkdir()
    monkeypatch.setattr(pinning_ur, "_NODES", nodes)
    monkeypatch.setattr(pinning_ur, "_CARDS", cards)
    assert pinning_ur.plugin.hardware() is None

    for name, maker in (("renderD128", "0x1002\n"), ("renderD129", "0x8086\n")):
        assert pinning_ur.plugin.hardware() is None
        (nodes / name).touch()
        (cards / name / "device").mkdir(parents=True)
        (cards / name / "device" / "vendor").write_text(maker)
    assert pinning_ur.plugin.hardware() == "an Intel GPU"
    (nodes / "renderD129").unlink()  # as in a container without access to it
    assert pinning_ur.plugin.hardware() is None

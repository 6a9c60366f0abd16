# SPDX-License-Identifier: Apache-2.0
"""The device under test, and the rule that a test leaves nothing locked."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from importlib import import_module
from importlib.metadata import entry_points

import pytest

import pinning
from pinning import LockLimitError, PinnedMap, PinningError
from pinning.conformance.allocations import Allocations
from pinning.conformance.faults import Faults
from pinning.conformance.held import Held
from pinning.conformance.memory import PAGE, Pages
from pinning.plugin import ENTRY_POINT_GROUP, CopyDevice, Device, MemoryDevice, Plugin, VendorQueue

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test that exceeds the lock limit of this process, which is not the fault of the device."""
    item.stash[FAILED] = False
    try:
        return (yield)
    except LockLimitError as error:
        pytest.skip(f"needs to lock more than it may: {error}")
    except pytest.skip.Exception:
        raise
    except BaseException:
        item.stash[FAILED] = True  # so what it leaves behind is no second failure
        raise


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    """The device named on the command line."""
    name = request.config.getoption("--device")
    try:
        if name is None:
            present = ", ".join(each.name for each in pinning.devices())
            raise pinning.ArgumentError(f"say which device to test: --device NAME; present are {present}")
        return pinning.device(name)
    except (pinning.ArgumentError, pinning.PluginUnavailableError) as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


def missing_members(device: Device) -> list[str]:
    """The members of `pinning.plugin.Device` that it lacks."""
    members = ("name", "vendor", "index", "data_lock", "data_unlock", "is_pinned_ptr")
    return [name for name in members if not hasattr(device, name)]


@pytest.fixture(scope="session")
def plugin(device: Device) -> Plugin:
    """The plugin of the device; skips the test if the device has not even what all have."""
    if missing := missing_members(device):
        pytest.skip(f"as test_a_device_has_the_members_of_the_interface: it has no {' and no '.join(missing)}")
    name = device.vendor
    (entry,) = entry_points(group=ENTRY_POINT_GROUP, name=name)
    found: Plugin = entry.load()
    return found


@pytest.fixture(scope="session")
def driver_faults(request: pytest.FixtureRequest) -> Faults | None:
    """The object that makes driver calls fail, if the command line names one."""
    name = request.config.getoption("--faults")
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    try:
        found: Faults = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        pytest.exit(f"--faults {name}: {error}; give MODULE:OBJECT", returncode=pytest.ExitCode.USAGE_ERROR)
    return found


@pytest.fixture
def faults(device: Device, driver_faults: Faults | None) -> Iterator[Faults]:
    """The object that makes driver calls fail, reset before the test and after it."""
    if driver_faults is None:
        pytest.skip(f"needs a stand-in for the driver of {device.name}, whose calls can fail: --faults")
    driver_faults.begin()
    yield driver_faults
    driver_faults.begin()


@pytest.fixture(scope="session")
def refusal(device: Device) -> PinningError | None:
    """The error with which the device refuses to lock a page of ordinary memory; None if it locks it."""
    pages = Pages(1)
    try:
        device.data_lock(pages.ptr, PAGE, None)
    except PinningError as error:
        return error
    device.data_unlock(pages.ptr)
    return None


@pytest.fixture
def copies(device: Device) -> CopyDevice:
    """The device, if it has memory of its own."""
    if not isinstance(device, CopyDevice):
        pytest.skip(f"{device.name} has no memory of its own: pinning.plugin.CopyDevice")
    return device


@pytest.fixture
def memories(device: Device) -> MemoryDevice:
    """The device, if it has kinds of memory, and queues."""
    if not isinstance(device, MemoryDevice):
        pytest.skip(f"{device.name} has no kinds of memory and no queues: pinning.plugin.MemoryDevice")
    return device


@pytest.fixture
def others(memories: MemoryDevice, plugin: Plugin) -> list[Device]:
    """The other devices of its plugin."""
    return [each for each in map(plugin.device, range(plugin.device_count())) if each is not memories]


@pytest.fixture
def queue(memories: MemoryDevice) -> Iterator[VendorQueue]:
    queue = memories.make_queue()
    yield queue
    queue.close()


@pytest.fixture
def memory(memories: MemoryDevice) -> Iterator[Allocations]:
    memory = Allocations(memories)
    yield memory
    memory.free()


@pytest.fixture
def able(device: Device, refusal: PinningError | None) -> Device:
    """The device; skips the test if it cannot lock."""
    if refusal is not None:
        pytest.skip(f"{device.name} locks no memory")
    return device


@pytest.fixture
def held(able: Device, request: pytest.FixtureRequest) -> Iterator[Held]:
    """Locks made by the device itself."""
    held = Held(able)
    yield held
    left = held.release()
    assert left == 0 or request.node.stash[FAILED], f"the test left {left} locks behind"


@pytest.fixture
def strict(held: Held) -> Held:
    """Locks of a device that refuses to unlock what is not locked; skips the test if it does not."""
    try:
        held.device.data_unlock(Pages(1).ptr)
    except PinningError:
        return held
    except Exception as error:
        pytest.skip(f"as test_unlocking_twice: {error!r}")
    pytest.skip("as test_unlocking_twice: it unlocks what is not locked")


@pytest.fixture
def pinned_map(able: Device, request: pytest.FixtureRequest) -> Iterator[PinnedMap]:
    """A new, empty map."""
    with PinnedMap(able) as fresh:
        yield fresh
        left = [f"{region.references} locks of [{region.start:#x}, {region.end:#x})" for region in fresh]
    assert not left or request.node.stash[FAILED], f"the test left {left} behind"


@pytest.fixture
def locking(able: Device, request: pytest.FixtureRequest) -> Iterator[Device]:
    """The device, for `pinning.lock`."""
    yield able
    assert pinning.regions(able) == [] or request.node.stash[FAILED], "the test left something locked"


@pytest.fixture
def tells(held: Held) -> Held:
    """Locks of a device that reports what is pinned; skips the test if it does not."""
    pages = Pages(1)
    held.lock(pages.ptr, PAGE)
    answer = held.device.is_pinned_ptr(pages.ptr)
    held.unlock(pages.ptr)
    if answer is None:
        pytest.skip(f"{held.device.name} cannot say what is pinned: is_pinned_ptr gives None for locked memory")
    return held

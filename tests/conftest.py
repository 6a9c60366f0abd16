# SPDX-License-Identifier: Apache-2.0
"""Hooks and fixtures for all tests, and the stand-in drivers that they share."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from fake_device import FakeDevice
from pinning_host.kernel import lock_limit
from run_folder import made_once, run_folder
from stacks import tell_before_killing
from standins.standin import Driver, MissingError
from watchdog import Watchdog

SLOW_LIMIT = 1200  # seconds for a slow test; `timeout` in pyproject.toml is that of others
USUAL_LIMIT = 8 << 20  # bytes of RLIMIT_MEMLOCK that are enough for every test

tell_before_killing(subprocess.TimeoutExpired, pytest.fail.Exception)

# A shell makes its background jobs ignore SIGINT, and their children inherit that; but tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# `pinning` warns so if the machine has a GPU that cannot be used, but many tests' programs must have an empty stderr.
os.environ["PYTHONWARNINGS"] = ",".join(
    filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:the host is the default device"])
)


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    """A device that only records its locks; many folders and modules have another one of this name."""
    device = FakeDevice()
    yield device
    assert device.wrong == []


@pytest.fixture(scope="session")
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Driver], Path]:
    """Builds a stand-in driver once and returns its folder; skips the test if that needs something not installed."""
    shared = run_folder(request.config, tmp_path_factory)

    def build(driver: Driver) -> Path:
        folder = shared / "-".join([driver.soname, *driver.options]).replace("/", "_")
        with made_once(folder) as made:
            if not made:
                part = Path(f"{folder}.part")
                part.mkdir(exist_ok=True)
                try:
                    driver.build(part)
                except MissingError as missing:
                    pytest.skip(str(missing))
                part.rename(folder)
        return folder

    return build


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))


watchdog = functools.cache(Watchdog)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process if a test hangs where its limit, a signal, does nothing."""
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker else float(item.config.getini("timeout"))
    watchdog().begin(item.nodeid, limit + 60)
    try:
        return (yield)
    finally:
        watchdog().end()


def pytest_collection_finish() -> None:
    """Exempt the objects of before the first test from garbage collections: tests request hundreds of them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that needs to lock more than RLIMIT_MEMLOCK allows, if that is less than usual."""
    try:
        return (yield)
    except Exception as error:
        limit = lock_limit()
        if limit and limit[0] < USUAL_LIMIT and _is_the_limits(error):
            traceback.clear_frames(error.__traceback__)  # frees the test's objects, as at its end
            pytest.skip(f"needs to lock more than the {limit[0] >> 10} KiB of RLIMIT_MEMLOCK (ulimit -l)")
        raise


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line per reason to skip, which is the text before its first colon; pytest prints one per place."""
    places = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        places[reason.partition(":")[0]].append(reason)
    if places:
        terminalreporter.section("skipped", "-")
    for reasons in places.values():
        terminalreporter.write_line(f"{len(reasons):5} {min(reasons, key=len)}")


def _is_the_limits(error: BaseException | None) -> bool:
    """Whether an error comes from RLIMIT_MEMLOCK, here or in a program that a test has run."""
    if isinstance(error, BaseExceptionGroup):  # from hypothesis, if an example fails only once
        return any(map(_is_the_limits, error.exceptions))
    return error is not None and ("RLIMIT_MEMLOCK" in str(error) or _is_the_limits(error.__context__))

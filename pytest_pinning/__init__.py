# SPDX-License-Identifier: Apache-2.0
"""The options of ``pytest --pyargs pinning.conformance``; no effect on any other run of pytest.

pytest loads the conftest.py of an installed package too late for options, so a pytest plugin defines them. It is not
part of `pinning`, because every run of pytest imports it.
"""

from __future__ import annotations

import pytest

SUITE = "pinning.conformance"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    if not any(argument.replace("::", ".").startswith(f"{SUITE}.") or argument == SUITE for argument in args):
        return
    group = parser.getgroup(SUITE)
    group.addoption("--device", metavar="NAME", help="the device to test, such as mydevice:0")
    group.addoption("--refuses", action="store_true", help="it is known to lock no memory; it must say so clearly")
    group.addoption(
        "--counted-as", choices=["VmLck", "VmPin"], help="what grows in /proc/self/status by the pages that it locks"
    )
    group.addoption(
        "--faults", metavar="MODULE:OBJECT", help="a stand-in for its driver: see Faults in docs/plugins.md"
    )

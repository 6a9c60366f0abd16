# SPDX-License-Identifier: Apache-2.0
"""The page of environment variables has those that the sources read, and values without meaning are reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from folders import ROOT

SOURCES = [
    path.read_text()
    for folder in ("native", "pagetable", "pinning", "pinning_command", "plugins", "pytest_pinning")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".cpp", ".hpp", ".py", ".pyx")
]
LOCKS = "import pinning; [pinning.lock(bytearray(9), device='host').unlock() for _ in range(2)]"


def test_the_page_has_the_variables_that_are_read() -> None:
    named = re.compile(r"[\"'](PINNING_[A-Z_]+)[\"']")
    page = (ROOT / "docs" / "environment.md").read_text()
    assert set(re.findall(r"`(PINNING_\w+)`", page)) == {name for text in SOURCES for name in named.findall(text)}


@pytest.mark.parametrize("name", ["PINNING_WATCH", "PINNING_STATUS", "PINNING_LOCK_SITES"])
def test_a_switch_that_is_neither_on_nor_off_is_reported_once(name: str) -> None:
    for value, times in (("no", 1), ("OFF", 0), ("On", 0), ("0", 0), ("1", 0), ("", 0)):
        command = [sys.executable, "-P", "-c", LOCKS]
        done = subprocess.run(command, env={**os.environ, name: value}, capture_output=True, text=True, timeout=60)
        counts = "off" if name == "PINNING_LOCK_SITES" else "on"
        told = f"pinning: {name}={value} means nothing: give one of off, on; `{counts}` is used\n"
        assert (done.returncode, done.stderr) == (0, told * times)

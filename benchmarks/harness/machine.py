# SPDX-License-Identifier: Apache-2.0
"""The machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from harness.compiler import CXX, CXX_FLAGS


def name() -> str:
    """The processor and how many of its CPUs this process may use."""
    model = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    processor = re.sub(r"\(R\)|\(TM\)|CPU|@.*", "", model[1]) if model else platform.machine()
    return f"{' '.join(processor.split())}, {len(os.sched_getaffinity(0))} CPUs"


def slug() -> str:
    return re.sub(r"[^a-z0-9]+", "-", name().lower()).strip("-")


def facts() -> dict[str, str]:
    compiler = subprocess.run([CXX, "--version"], text=True, capture_output=True).stdout.splitlines()
    return {
        "processor": name(),
        "caches": ", ".join(_caches()),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "transparent huge pages": _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "compiler": f"{compiler[0] if compiler else CXX}, {' '.join(CXX_FLAGS)}",
        "Python": platform.python_version(),
        "busy before the run": f"{os.getloadavg()[0]:.2f} (load average)",
    }


def _caches() -> list[str]:
    caches = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(folder / each) for each in ("level", "type", "size"))
        if kind != "Instruction":
            caches.append(f"L{level} {size}")
    return caches or ["unknown"]


def _chosen(text: str) -> str:
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen[1] if chosen else "unknown"


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""

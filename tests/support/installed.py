# SPDX-License-Identifier: Apache-2.0
"""The package as a user gets it: a wheel of this repository, and a Python in which that wheel is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from folders import ROOT

_keep: list[TemporaryDirectory[str]] = []


class Installed(NamedTuple):
    """`python` runs with the wheel installed in `site`, and with the packages of this process's environment."""

    python: Path
    site: Path

    def run(self, *arguments: str | Path, folder: Path) -> str:
        """What ``python *arguments`` prints, started in `folder`."""
        return run(self.python, *arguments, folder=folder)


def run(*command: str | Path, folder: Path) -> str:
    """What the command prints; a command that fails, fails the test."""
    # Under `make test` Python is told not to look for modules in the folder that it is started in.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@cache
def wheel() -> Path:
    """The wheel that `make` has built, if still current; otherwise built once a session, as ``pip wheel .`` does."""
    made = ROOT / ".venv" / "wheel"
    current = Path(sys.prefix) == made.parent and shutil.which("make") is not None
    if current and subprocess.run(["make", "-q", ".venv/wheel"], cwd=ROOT, capture_output=True).returncode == 0:
        return next(made.glob("*.whl"))
    folder = _folder("wheel")
    pip("wheel", "-q", "--no-deps", *no_isolation("scikit-build-core>=0.11", "cython>=3.1"), "-w", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@cache
def installed() -> Installed:
    """A separate virtual environment: nothing in it comes from the repository."""
    folder = _folder("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
    # A path in a .pth file is searched last, and the .pth files in it, as of an editable installation, have no effect.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip("install", "-q", "--no-deps", "--target", site, wheel())
    return Installed(python, site)


def pip(*arguments: str | Path) -> None:
    """Run pip; skip the test if there is none, as in an environment that uv made."""
    if find_spec("pip") is None:
        pytest.skip("needs pip in this environment: python -m ensurepip")
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, folder=ROOT)


def no_isolation(*requirements: str) -> list[str]:
    """The option that lets pip build with what is installed, if that is enough; otherwise pip gets it from PyPI."""
    for each in map(Requirement, requirements):
        try:
            if version(each.name) not in each.specifier:
                return []
        except PackageNotFoundError:
            return []
    return ["--no-build-isolation"]


def _folder(name: str) -> Path:
    _keep.append(TemporaryDirectory(prefix=f"pinning-{name}-"))
    return Path(_keep[-1].name)


def tool(name: str, remedy: str) -> str:
    """The path of a program; without it, skip the test and name the remedy."""
    found = shutil.which(name) or shutil.which(Path(sys.executable).parent / name)
    if found is None:
        pytest.skip(f"needs {name}: {remedy}")
    return found

# SPDX-License-Identifier: Apache-2.0
"""What `import pinning` loads, and what is loaded only when it is needed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import pinning

HEAVY = {"asyncio", "importlib.metadata", "logging", "pinning.arena", "pinning.arrays", "pinning.files"}
FILES = ("copy_file", "copy_file_async", "load_file", "save_file", "save_file_async")
NAMES = sorted({"Arena", *FILES})


def imported_by(program: str) -> set[str]:
    program = f"import numpy, sys; before = set(sys.modules); {program}; print(*(set(sys.modules) - before))"
    command = [sys.executable, "-P", "-c", program]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_import_brings_in_only_what_most_programs_need() -> None:
    modules = imported_by("import pinning")
    assert "pinning.locking.lock" in modules
    assert not modules & HEAVY
    assert not {module for module in modules if module.startswith("pinning_")}, "no plugin"


def test_no_text_is_read_in_an_encoding_that_depends_on_the_locale() -> None:
    program = "import pinning; pinning.lock(bytearray(9)).unlock()"
    command = [sys.executable, "-P", "-X", "warn_default_encoding", "-c", program]
    warned = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "pinning" not in warned


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_later_is_there_all_the_same(name: str) -> None:
    modules = imported_by(f"import pinning; from pinning import {name}; assert pinning.{name} is {name}")
    assert modules & {"pinning.arena", "pinning.files"}
    assert name in pinning.__all__


@pytest.mark.parametrize("name", ["arena", "arrays", "build", "files"])
def test_packages_are_attributes_of_the_package(name: str) -> None:
    assert f"pinning.{name}" in imported_by(f"import pinning; assert pinning.{name}.__name__ == 'pinning.{name}'")


def test_the_package_can_be_looked_at_without_the_libraries_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pinning, "cupy", raising=False)
    monkeypatch.delitem(sys.modules, "pinning.cupy", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not hasattr(pinning, "cupy") and "cupy" in dir(pinning)
    with pytest.raises(AttributeError, match="cupy needs"):
        _ = pinning.cupy
    with pytest.raises(ImportError, match="cupy needs"):
        importlib.import_module("pinning.cupy")


def test_all_that_is_public_can_be_had_by_a_star() -> None:
    assert {"pinning.arena", "pinning.files"} <= imported_by("from pinning import *; Arena; load_file")


def test_a_device_by_its_name_brings_in_its_plugin_alone() -> None:
    modules = imported_by("import pinning; pinning.lock(bytearray(9), device=pinning.device('host:0')).unlock()")
    modules |= imported_by("import pinning; pinning.lock(bytearray(9), device='host').unlock()")
    assert {module for module in modules if module.startswith("pinning_") and "." not in module} == {"pinning_host"}
    assert not modules & HEAVY


def test_dir_has_the_public_names_and_no_others() -> None:
    names = {name for name in dir(pinning) if not name.startswith("__")}
    assert {*pinning.__all__, "torch", "ray", "dask", "arrays", "errors", "plugin"} <= names
    assert not names & {"Path", "import_module", "TYPE_CHECKING", "runtime", "machine"}
    assert not any(name.startswith("_") for name in names)

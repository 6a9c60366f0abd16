# SPDX-License-Identifier: Apache-2.0
"""dlsym, which every program calls, behaves as without this library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pinning
from installed import tool
from standins.libcuda import DRIVER
from standins.standin import Driver

TOOL = pinning.build.library_dirs()[0] / "libpinning_run.so"
SOURCES = Path(__file__).parent / "sources"


def compiled(source: str, target: Path, *options: str) -> Path:
    """Compile one of `sources` and return `target`."""
    command = [tool("gcc", "apt-get install gcc"), "-O2", "-Wall", "-Werror", SOURCES / source, "-o", target]
    subprocess.run([*command, *options, "-ldl"], check=True)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program linked to two libraries that define the same function."""
    folder = tmp_path_factory.mktemp("lookups")
    for name in ("first", "second"):
        compiled("lookups.c", folder / f"lib{name}.so", "-shared", "-fPIC", f'-DLIBRARY="{name}"')
    libraries = [f"-L{folder}", "-Wl,--no-as-needed", "-lfirst", "-lsecond", f"-Wl,-rpath,{folder}"]
    return compiled("lookups.c", folder / "program", *libraries)


def outcome(program: Path, preload: str, environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    variables = {**environment, "LD_PRELOAD": preload}
    done = subprocess.run([program, *arguments], env=variables, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_names_are_found_as_without_it(program: Path) -> None:
    plain = outcome(program, "", dict(os.environ))
    assert plain[0] == 0
    assert plain[1].startswith("first, then second, then nothing\n")
    assert "cuMemcpy\ndefault: not found, an error\n" in plain[1]
    assert outcome(program, str(TOOL), dict(os.environ)) == plain


@pytest.mark.parametrize("beside", [False, True])
def test_a_function_of_another_library_stays_that(
    tmp_path: Path, build: Callable[[Driver], Path], beside: bool
) -> None:
    if not beside and "libcuda.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout:
        pytest.skip("needs a machine without CUDA")
    environment = DRIVER.environment(build(DRIVER)) if beside else dict(os.environ)
    compiled("simulator.c", tmp_path / "libsimulator.so", "-shared", "-fPIC", "-DLIBRARY")
    linked = [f"-L{tmp_path}", "-lsimulator", f"-Wl,-rpath,{tmp_path}"]
    plain = outcome(compiled("simulator.c", tmp_path / "program", *linked), "", environment)
    assert plain == (0, f"{'beside a driver' if beside else 'alone'}\n" + 3 * "77 bytes\n", "")
    assert outcome(tmp_path / "program", str(TOOL), environment) == plain


@pytest.mark.parametrize("first", [True, False])
def test_another_library_that_answers_dlsym(tmp_path: Path, first: bool) -> None:
    other = compiled("dlsym_before.c", tmp_path / "other.so", "-shared", "-fPIC")
    libraries = [str(other), str(TOOL)] if first else [str(TOOL), str(other)]
    assert outcome(Path("/bin/true"), ":".join(libraries), dict(os.environ)) == (0, "", "")


def test_and_beside_the_driver(program: Path, build: Callable[[Driver], Path]) -> None:
    folder = build(DRIVER)
    environment, driver = DRIVER.environment(folder), str(folder / "libcuda.so.1")
    plain = outcome(program, driver, environment)
    assert "cuMemcpy\ndefault: found, no error\nnext: found, no error\n" in plain[1]
    assert outcome(program, f"{TOOL}:{driver}", environment) == plain
    assert outcome(program, f"{driver}:{TOOL}", environment) == plain


@pytest.mark.parametrize("way", ["dlsym", "proc"])
def test_a_program_that_closes_the_driver_and_opens_it_again(
    tmp_path: Path, build: Callable[[Driver], Path], way: str
) -> None:
    """The addresses that are known here stay valid."""
    program = compiled("closed.c", tmp_path / "closed")
    assert outcome(program, str(TOOL), DRIVER.environment(build(DRIVER)), way) == (0, "copied\n", "")

# SPDX-License-Identifier: Apache-2.0
"""dlsym, which every program calls, behaves as without this library."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pinning
from standins.libcuda import DRIVER
from standins.standin import Driver, MissingError

TOOL = pinning.build.library_dirs()[0] / "libpinning_run.so"
SOURCE = Path(__file__).parent / "sources" / "lookups.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program linked to two libraries that define the same function."""
    compiler = shutil.which("gcc") or pytest.skip("needs gcc: apt-get install gcc")
    folder = tmp_path_factory.mktemp("lookups")
    for name in ("first", "second"):
        made = ["-shared", "-fPIC", f'-DLIBRARY="{name}"', "-o", folder / f"lib{name}.so"]
        subprocess.run([compiler, "-O2", "-Wall", "-Werror", SOURCE, *made, "-ldl"], check=True)
    libraries = [f"-L{folder}", "-Wl,--no-as-needed", "-lfirst", "-lsecond", f"-Wl,-rpath,{folder}", "-ldl"]
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", SOURCE, "-o", folder / "program", *libraries], check=True)
    return folder / "program"


def outcome(program: Path, preload: str, environment: dict[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [program], env={**environment, "LD_PRELOAD": preload}, capture_output=True, text=True, timeout=300
    )
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
    compiler = shutil.which("gcc") or pytest.skip("needs gcc: apt-get install gcc")
    if not beside and "libcuda.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout:
        pytest.skip("needs a machine without CUDA")
    try:
        environment = DRIVER.environment(build(DRIVER)) if beside else dict(os.environ)
    except MissingError as error:
        pytest.skip(str(error))
    command = [compiler, "-O2", "-Wall", "-Werror", SOURCE.with_name("simulator.c")]
    subprocess.run([*command, "-shared", "-fPIC", "-DLIBRARY", "-o", tmp_path / "libsimulator.so"], check=True)
    linked = [f"-L{tmp_path}", "-lsimulator", f"-Wl,-rpath,{tmp_path}", "-ldl"]
    subprocess.run([*command, "-o", tmp_path / "program", *linked], check=True)
    plain = outcome(tmp_path / "program", "", environment)
    assert plain == (0, f"{'beside a driver' if beside else 'alone'}\n" + 3 * "77 bytes\n", "")
    assert outcome(tmp_path / "program", str(TOOL), environment) == plain


@pytest.mark.parametrize("first", [True, False])
def test_another_library_that_answers_dlsym(tmp_path: Path, first: bool) -> None:
    compiler = shutil.which("gcc") or pytest.skip("needs gcc: apt-get install gcc")
    other = tmp_path / "other.so"
    made = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", other, "-ldl"]
    subprocess.run([compiler, SOURCE.with_name("dlsym_before.c"), *made], check=True)
    libraries = [str(other), str(TOOL)] if first else [str(TOOL), str(other)]
    assert outcome(Path("/bin/true"), ":".join(libraries), dict(os.environ)) == (0, "", "")


def test_and_beside_the_driver(program: Path, build: Callable[[Driver], Path]) -> None:
    try:
        folder = build(DRIVER)
    except MissingError as error:
        pytest.skip(str(error))
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
    compiler = shutil.which("gcc") or pytest.skip("needs gcc: apt-get install gcc")
    try:
        environment = DRIVER.environment(build(DRIVER))
    except MissingError as error:
        pytest.skip(str(error))
    program = tmp_path / "closed"
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Werror", SOURCE.with_name("closed.c"), "-o", program, "-ldl"], check=True
    )
    done = subprocess.run(
        [program, way], env={**environment, "LD_PRELOAD": str(TOOL)}, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "copied\n", "")

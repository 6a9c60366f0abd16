# SPDX-License-Identifier: Apache-2.0
"""A program that locks nothing behaves the same with the library loaded first, whatever it does and is linked to."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import SOURCES, TOOL

from installed import tool

Build = Callable[..., Path]
WAYS = [
    "memory",
    "children",
    "libraries",
    "no descriptors",
    "ten descriptors",
    "no streams",
    "small stacks",
    "idle threads",
    "few addresses",
    "no processes",
    "changed root",
    "traced",
    "refused advice",
    "sandboxed",
]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a C source, once for each name; with ``-shared`` into a library."""
    compiler = tool("gcc", "apt-get install gcc")
    folder = tmp_path_factory.mktemp("harmless")

    def build(source: str, name: str, *options: object) -> Path:
        made = folder / name
        if not made.exists():
            command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", SOURCES / source, "-o", made, "-pthread", "-ldl"]
            subprocess.run([*command, *options], check=True)
        return made

    return build


def outcome(*command: object, preload: str = "", streams: bool = True, **variables: str) -> tuple[int, str, str]:
    """Run a command; return its exit status, output and errors."""
    environment = {**os.environ, "LD_PRELOAD": preload, "EF_DISABLE_BANNER": "1", **variables}
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=streams, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout or "", done.stderr or ""


def by_run(*command: object) -> tuple[int, str, str]:
    """The same by ``pinning run``."""
    run = [sys.executable, "-P", "-c", "from pinning_command import main; main()", "run", "--"]
    code, out, errors = outcome(*run, *command)
    return code, out, errors


@pytest.mark.parametrize("way", WAYS)
def test_a_program_does_the_same(build: Build, way: str) -> None:
    program = build("harmless.c", "harmless")
    command: list[object] = [program, way]
    if way == "no streams":
        command = ["sh", "-c", f"exec {program} 'no streams' 0<&- 1>&- 2>&-"]
    plain = outcome(*command)
    if plain[0] == 77:
        pytest.skip(f"{way}: not for this user, or this kernel")
    assert plain[0] == 5, plain
    assert outcome(*command, preload=str(TOOL)) == plain
    assert by_run(*command) == plain


def linked_to(build: Build, source: str) -> list[object]:
    """Builds a library; the options that link a program to it, whose constructors run before those of the tool."""
    library = build(source, f"lib{Path(source).stem}.so", "-shared", "-fPIC")
    return ["-Wl,--no-as-needed", library, f"-Wl,-rpath,{library.parent}"]


def test_a_library_that_meets_errors_of_the_loader_before_the_tool_begins(build: Build) -> None:
    """The loader frees the text of such an error when the tool looks up `free`."""
    program = build("harmless.c", "early_errors", *linked_to(build, "early_errors.c"))
    plain = outcome(program, "memory")
    assert plain[0] == 5, plain
    assert outcome(program, "memory", preload=str(TOOL)) == plain


def test_a_program_with_a_thread_sanitizer(build: Build) -> None:
    """Its runtime in the program itself must register a thread before that calls a function of threads."""
    try:
        program = build("harmless.c", "tsan", "-fsanitize=thread", "-static-libtsan")
    except subprocess.CalledProcessError:
        pytest.skip("needs libtsan.a, which comes with gcc")
    plain = outcome(program, "small stacks")
    if plain[0] != 5:
        pytest.skip("a thread sanitizer: does not run here")
    assert outcome(program, "small stacks", preload=str(TOOL)) == plain


@pytest.mark.parametrize("way", ["directly", "by a shell"])
@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
def test_a_program_with_a_sanitizer_that_is_a_shared_library(build: Build, sanitizer: str, way: str) -> None:
    try:
        program = build("counting.c", f"counting-{sanitizer}", f"-fsanitize={sanitizer}")
    except subprocess.CalledProcessError:
        pytest.skip(f"needs gcc's {sanitizer} sanitizer")
    command: list[object] = [program] if way == "directly" else ["sh", "-c", f"{program}; exit $?"]
    plain = outcome(*command)
    if plain != (5, "400\n", ""):
        pytest.skip(f"the {sanitizer} sanitizer does not run here: {plain}")
    assert by_run(*command) == plain


@pytest.mark.parametrize("checker", ["helgrind", "drd", "memcheck"])
def test_a_program_in_valgrind(build: Build, checker: str) -> None:
    valgrind = shutil.which("valgrind") or pytest.skip("needs valgrind: apt-get install valgrind")
    command = [valgrind, "-q", f"--tool={checker}", "--error-exitcode=9", build("counting.c", "counting")]
    plain = outcome(*command)
    if plain != (5, "400\n", ""):
        pytest.skip(f"{checker} does not run here: {plain}")
    assert outcome(*command, preload=str(TOOL)) == plain


def test_a_library_that_joins_its_threads_before_a_fork(build: Build) -> None:
    options = linked_to(build, "joins_before_fork.c")
    program = build("joins_before_fork.c", "joins_before_fork", "-DPROGRAM", *options)
    assert outcome(program, preload=str(TOOL)) == (0, "20 children\n", "")


@pytest.fixture(params=["guarded_malloc", "efence", "jemalloc", "tcmalloc_minimal", "mimalloc"])
def allocator(request: pytest.FixtureRequest, build: Build) -> str:
    """A library with its own allocator."""
    if request.param == "guarded_malloc":
        return str(build("guarded_malloc.c", "libguarded_malloc.so", "-shared", "-fPIC", "-fno-builtin"))
    return ctypes.util.find_library(request.param) or pytest.skip(f"there is no lib{request.param}.so here")


@pytest.mark.parametrize("way", ["memory", "children"])
def test_a_program_with_an_allocator_of_its_own(build: Build, allocator: str, way: str) -> None:
    program = build("harmless.c", "harmless")
    plain = outcome(program, way, preload=allocator)
    assert plain[0] == 5, plain
    assert outcome(program, way, preload=f"{allocator}:{TOOL}") == plain
    assert outcome(program, way, preload=f"{TOOL}:{allocator}") == plain
    name, folder = Path(allocator).name, Path(allocator).parent
    options = ["-Wl,--no-as-needed", f"-L{folder}", f"-l:{name}", f"-Wl,-rpath,{folder}"]
    linked = build("harmless.c", f"harmless-{name}", *options)
    assert outcome(linked, way, preload=str(TOOL)) == plain

# SPDX-License-Identifier: Apache-2.0
"""``pinning run`` starts a program as another launcher does: with its signals, environment, shell and libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinning_command import elf

PINNING_RUN = [sys.executable, "-P", "-c", "from pinning_command import main; main()", "run"]


def output(command: list[object], variables: Mapping[bytes, bytes] = os.environb) -> bytes:
    """What a program under ``pinning run`` prints, and nothing of the launcher."""
    whole = [*PINNING_RUN, "--", *map(str, command)]
    done = subprocess.run(whole, env=dict(variables), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_signals_have_the_actions_of_the_caller() -> None:
    mask = "while read -r name value; do [ $name = SigIgn: ] && echo $value; done < /proc/self/status; true"
    assert output(["sh", "-c", mask]) == subprocess.check_output(["sh", "-c", mask])
    nohup = ["nohup", "sh", "-c", mask]
    assert subprocess.check_output([*nohup[:1], *PINNING_RUN, *nohup[1:]]) == subprocess.check_output(nohup)


def test_a_program_ends_when_the_reader_of_its_pipe_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run([*PINNING_RUN, "--", "yes"], stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (-13, b"")


@pytest.mark.parametrize("locale", [{}, {b"LANG": b"C"}, {b"LC_CTYPE": b"C"}])
def test_the_environment_is_that_of_the_caller(locale: dict[bytes, bytes]) -> None:
    caller = {b"PATH": os.environb[b"PATH"], b"LATIN": b"\xe9", b"EMPTY": b"", b"EQUALS": b"=a=b=", **locale}
    seen = dict(entry.split(b"=", 1) for entry in output(["env", "-0"], caller).split(b"\0") if entry)
    assert {seen.pop(b"LD_PRELOAD").endswith(b"/libpinning_run.so"), seen.pop(b"PINNING_RUN").isdigit()} == {True}
    assert seen == caller


def test_of_entries_with_one_name_the_first_counts_and_one_without_does_not_matter() -> None:
    entries = [*os.environ.items(), ("TWICE", "first"), ("TWICE", "second"), ("", "x")]
    given: Any = SimpleNamespace(items=lambda: entries)  # a dict has one of each name
    done = subprocess.run([*PINNING_RUN, "--", "printenv", "TWICE"], env=given, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"first\n", b"")


@pytest.mark.parametrize("way", ["path", "name"])
def test_a_script_that_names_no_interpreter_is_one_of_the_shell(tmp_path: Path, way: str) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$0|$1|$2"')
    script.chmod(0o755)
    (tmp_path / "before" / script.name).mkdir(parents=True)  # a folder is no program
    folders = [tmp_path / "before", tmp_path, os.environ["PATH"]]
    variables = {**os.environb, b"PATH": os.fsencode(":".join(map(str, folders)))}
    command: list[object] = [script if way == "path" else script.name, "a b", "--report"]
    assert output(command, variables) == f"{script}|a b|--report\n".encode()


class Prefix:
    """A folder such as those of conda, with the system's cat and a copy of libstdc++ that has later symbols."""

    def __init__(self, folder: Path, name: str, newest: int) -> None:
        self.program = folder / name / "bin" / "cat"
        self.library = folder / name / "lib" / "libstdc++.so.6"
        for file in (self.program, self.library):
            file.parent.mkdir(parents=True)
        shutil.copy(shutil.which("cat") or pytest.skip("needs cat"), self.program)
        shutil.copy(self.of_the_loader(), self.library)
        with self.library.open("ab") as file_of_library:  # the loader does not read what follows the last section
            file_of_library.write(b"\0GLIBCXX_3.4.%d\0" % newest)

    @staticmethod
    def of_the_loader() -> Path:
        """The libstdc++ of a program that brings none."""
        found = mapped(output(["cat", "/proc/self/maps"]))
        if not found:
            pytest.skip("the compiler has linked libstdc++ into the tool")
        assert len(found) == 1
        return found.pop()


def mapped(maps: bytes) -> set[Path]:
    """The libstdc++ in /proc/self/maps."""
    return {Path(os.fsdecode(name)) for name in re.findall(rb"/\S.*/libstdc\+\+\.so\.6.*", maps)}


@pytest.mark.parametrize("way", ["program", "link", "script", "env"])
def test_a_program_that_brings_a_newer_libstdcxx_has_that(tmp_path: Path, way: str) -> None:
    prefix = Prefix(tmp_path, "prefix", newest=9999)
    started, variables = tmp_path / way, dict(os.environb)
    if way == "program":
        started = prefix.program
    elif way == "link":
        started.symlink_to(prefix.program)
    else:
        started.write_text(f"#!{prefix.program if way == 'script' else '/usr/bin/env -S cat -u'}\n")
        started.chmod(0o755)
        variables[b"PATH"] = os.fsencode(prefix.program.parent) + b":" + variables[b"PATH"]
    assert mapped(output([started, "/proc/self/maps"], variables)) == {prefix.library}


@pytest.mark.parametrize(("name", "newest"), [("prefix", 0), ("a prefix", 9999), ("a:prefix", 9999)])
def test_an_older_libstdcxx_and_one_that_cannot_be_preloaded_is_left(tmp_path: Path, name: str, newest: int) -> None:
    prefix = Prefix(tmp_path, name, newest)
    assert mapped(output([prefix.program, "/proc/self/maps"])) == {prefix.of_the_loader()}


def test_a_still_newer_libstdcxx_of_the_caller_counts(tmp_path: Path) -> None:
    prefix, caller = Prefix(tmp_path, "prefix", newest=9998), Prefix(tmp_path, "caller", newest=9999)
    variables = {**os.environb, b"LD_LIBRARY_PATH": os.fsencode(caller.library.parent)}
    assert mapped(output([prefix.program, "/proc/self/maps"], variables)) == {caller.library}
    variables = {**os.environb, b"LD_PRELOAD": os.fsencode(caller.library)}
    assert mapped(output([prefix.program, "/proc/self/maps"], variables)) == {caller.library}


def test_a_program_with_a_loader_and_a_c_library_of_its_own(tmp_path: Path) -> None:
    """As those of nix and spack, here of the same version."""
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    maps = Path("/proc/self/maps").read_text()
    for name in ("ld-linux", "libc.so", "libm.so"):
        library = next(each.split()[-1] for each in maps.splitlines() if f"/{name}" in each)
        shutil.copy(library, tmp_path)
    loader = next(tmp_path.glob("ld-linux*"))
    source, built = tmp_path / "program.c", tmp_path / "program"
    source.write_text("""#include <stdio.h>
int main(void) { FILE *maps = fopen("/proc/self/maps", "r"); int c; while ((c = getc(maps)) != EOF) putchar(c); }""")
    own = [f"-Wl,--dynamic-linker={loader}", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([compiler, source, "-o", built, *own], check=True)
    told = output([built]).decode()
    assert "/libpinning_run.so" in told
    assert {path.name for path in tmp_path.glob("*.so*") if f"{path}\n" in told} >= {loader.name, "libc.so.6"}


@pytest.mark.parametrize(("at", "native"), [(9, True), (18, False), (19, False)])  # of its ABI, and its machine
def test_a_program_for_another_processor_is_known_as_such(tmp_path: Path, at: int, native: bool) -> None:
    changed = bytearray(Path("/proc/self/exe").read_bytes())
    changed[at] ^= 3
    (tmp_path / "program").write_bytes(changed)
    header = elf.read(str(tmp_path / "program"))
    assert header is not None
    assert header.native is native


@pytest.mark.parametrize("way", ["program", "script", "loader"])
def test_a_program_of_another_libc_runs_without_the_tool(tmp_path: Path, way: str) -> None:
    compiler = shutil.which("musl-gcc") or pytest.skip("needs musl-gcc: apt-get install musl-tools")
    source, built, script = tmp_path / "program.c", tmp_path / "program", tmp_path / "script"
    source.write_text("""#include <stdio.h>
#include <stdlib.h>
int main(void) { char *preload = getenv("LD_PRELOAD"); puts(preload ? preload : "none"); return 3; }""")
    subprocess.run([compiler, source, "-o", built], check=True)
    loader = next((name for name in Path("/lib").glob("ld-musl-*.so.1")), None)
    if loader is None:
        pytest.skip("needs musl: apt-get install musl")
    script.write_text(f"#!{built}\n")
    script.chmod(0o755)
    command = {"program": [built], "script": [script], "loader": [loader, built]}[way]
    done = subprocess.run([*PINNING_RUN, "--", *command], capture_output=True, text=True, timeout=60)
    named = loader.resolve() if way == "loader" else loader
    why = f"the tool cannot be loaded into {command[0]}, so nothing is locked: its loader {named} is not that of glibc"
    assert (done.returncode, done.stdout, done.stderr) == (3, "none\n", f"pinning: {why}\n")
    variables = {**os.environ, "LD_PRELOAD": "/no/such"}  # which that loader ignores
    done = subprocess.run([*PINNING_RUN, "--", *command], env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "/no/such\n")


def test_a_damaged_program_is_not_executed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    head = bytearray(Path("/proc/self/exe").read_bytes()[:64])
    for table in (1 << 63, 1 << 62):  # where its program headers begin
        head[32:40] = table.to_bytes(8, "little")
        program.write_bytes(head)
        program.chmod(0o755)
        done = subprocess.run([*PINNING_RUN, "--", program], capture_output=True, text=True, timeout=60)
        assert (done.returncode, "cannot be executed" in done.stderr) == (126, True), done.stderr


@pytest.mark.parametrize("closing", ["2>&-", "2>/dev/full"])
def test_a_line_that_cannot_be_written_stops_nothing(tmp_path: Path, closing: str) -> None:
    compiler = shutil.which("gcc") or pytest.skip("needs gcc: apt-get install gcc")
    source, built = tmp_path / "program.c", tmp_path / "program"
    source.write_text("int main(void) { return 3; }")
    if subprocess.run([compiler, "-static", source, "-o", built]).returncode:
        pytest.skip("needs a static C library")
    for program, code in ((built, 3), (tmp_path / "none", 127)):  # of both, the launcher has to say something
        command = ["sh", "-c", f'exec "$@" {closing}', "sh", *PINNING_RUN, "--", program]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60)
        assert (done.returncode, done.stdout) == (code, b"")


def test_nor_does_one_to_a_pipe_whose_reader_is_gone(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run([*PINNING_RUN, "--", tmp_path / "none"], stderr=pipe, timeout=60)
    assert done.returncode == 127


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    """With a /dev of its own, where standard output is a link to a file."""
    private = ["unshare", "--mount", "sh", "-c"]
    if subprocess.run([*private, "mount --make-rprivate /"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    (tmp_path / "dev").mkdir()
    stdout = tmp_path / "dev" / "stdout"
    stdout.symlink_to("/proc/self/fd/1")
    (tmp_path / "dev" / "null").touch()
    script = 'mount --make-rprivate / && mount --bind "$0/dev" /dev && exec "$@" > "$0/out"'
    program = [*PINNING_RUN, "--report-file", "/dev/stdout", "--", sys.executable, "-c", "print('hello')"]
    done = subprocess.run([*private, script, tmp_path, *program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stdout.is_symlink()
    assert (tmp_path / "out").read_text().startswith("hello\npinning: ")
    assert sorted(path.name for path in stdout.parent.iterdir()) == ["null", "stdout"]

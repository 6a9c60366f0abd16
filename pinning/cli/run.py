# SPDX-License-Identifier: Apache-2.0
"""``pinning run``: executes a program so that its mapped buffers are locked and its CUDA copies are staged."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import pinning
from pinning.cli import elf

LIBSTDCXX = "libstdc++.so.6"


class LockMapped(StrEnum):
    """The values of `PINNING_LOCK_MAPPED`."""

    OFF = "off"
    ON = "on"
    MANDATORY = "mandatory"


class Copies(StrEnum):
    """The values of `PINNING_COPIES`."""

    OFF = "off"
    ON = "on"


def library() -> Path:
    """The path of the tool, the library that is preloaded into the program.

    Raises
    ------
    PluginUnavailableError
        It was not built, or LD_PRELOAD does not accept its path.
    """
    path = pinning.library_dirs()[0] / "libpinning_run.so"
    if not path.is_file():
        raise pinning.PluginUnavailableError(f"{path} is missing: reinstall pinning")
    if not may_be_preloaded(path):
        raise pinning.PluginUnavailableError(
            f"LD_PRELOAD does not accept a path with a space or a colon, such as {path}: install pinning "
            "in another folder"
        )
    return path


def may_be_preloaded(path: Path) -> bool:
    return not set(str(path)) & set(" :")


def start_environment() -> dict[str, str]:
    """The environment that this process was started with, without entries that exec refuses: those without a name.

    Not `os.environ`: in the C locale, CPython sets LC_CTYPE (PEP 538), which would change the program's locale.
    """
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {name: value for name, value in os.environ.items() if name}
    variables: dict[str, str] = {}
    for name, equals, value in (os.fsdecode(entry).partition("=") for entry in entries):
        if name and equals:
            variables.setdefault(name, value)  # of equal names the first counts, as in getenv
    return variables


def environment(
    base: Mapping[str, str],
    lock_mapped: LockMapped | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    copies: Copies | None = None,
    program: Path | None = None,
) -> dict[str, str]:
    """The environment of a program that runs with the tool: `base`, and the arguments that are not None.

    Without the tool if the program's loader would end the program for it.
    """
    preload = [] if program and other_loader(program) else [str(library())]
    if preload and program and (brought := newer_libstdcxx(program, base)):
        preload.append(str(brought))
    preload += filter(None, [base.get("LD_PRELOAD")])
    more = {
        "PINNING_LOCK_MAPPED": lock_mapped,
        "PINNING_COPIES": copies,
        "PINNING_REPORT": report and str(report),
        "PINNING_TRACE": trace and str(trace),
        "PINNING_RUN": str(os.getpid()),  # kept by exec: distinguishes the program from its children
    }
    more["LD_PRELOAD"] = ":".join(preload)
    return {**base, **{name: value for name, value in more.items() if value}}


def other_loader(program: Path) -> Path | None:
    """The loader of the program, or of a script's interpreter, if it is not glibc's, such as musl's.

    The tool needs glibc: such a loader would not find its functions, and end the program with an error for each.
    """
    file = executed(program)
    with suppress(OSError, struct.error):  # exec reports it
        head = elf.read(file)
        if head is None:
            return None
        loader = head.loader or (file if ".so" in file.name else None)
        return None if loader is None or elf.is_glibcs(loader) else loader
    return None


def newer_libstdcxx(program: Path, variables: Mapping[str, str]) -> Path | None:
    """The libstdc++ that the program brings, if it is newer than the one that the loader finds for the tool.

    A process has only one, and the loader looks for the tool's before the program's. A preloaded one precedes both. An
    older one is left to the program, because the programs that it starts inherit LD_PRELOAD and may need a newer one.
    """
    folder = executed(program).parent
    own = folder.parent / "lib" / LIBSTDCXX
    if folder.name != "bin" or str(folder.parent) in ("/", "/usr") or not may_be_preloaded(own):
        return None
    return own if release(own) > max(map(release, libstdcxx_of_loader(variables)), default=-1) else None


def executed(program: Path) -> Path:
    """What is executed: the program, or the interpreter of a script; if that is env, what env finds on PATH."""
    try:
        with program.open("rb") as file:
            line = file.readline(256).partition(b"\0")[0]
        words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return Path(shutil.which(words[0]) or words[0] if words else program).resolve()
    except (OSError, RuntimeError):  # RuntimeError: a loop of symbolic links, up to Python 3.12; exec reports it
        return program


def libstdcxx_of_loader(variables: Mapping[str, str]) -> Iterator[Path]:
    """Where the loader finds libstdc++ for the tool, which has none in its own folder; also for other processors."""
    for file in re.split("[ :]", variables.get("LD_PRELOAD", "")):
        if Path(file).name == LIBSTDCXX:
            yield Path(file)
    for folder in filter(None, re.split("[:;]", variables.get("LD_LIBRARY_PATH", ""))):
        yield Path(folder) / LIBSTDCXX
    with suppress(OSError):
        cache = Path("/etc/ld.so.cache").read_bytes()
        for name in re.findall(rb"/[^\0]*/%s(?=\0)" % re.escape(LIBSTDCXX).encode(), cache):
            yield Path(os.fsdecode(name))


def release(libstdcxx: Path) -> int:
    """N of its newest symbols' version, GLIBCXX_3.4.N; -1 if there is none, or none for this processor."""
    try:
        head = elf.read(libstdcxx)
        if head is None or not head.native:
            return -1
        return max(map(int, re.findall(rb"GLIBCXX_3\.4\.(\d+)\0", libstdcxx.read_bytes())), default=-1)
    except (OSError, struct.error):
        return -1


def make_way(*files: Path | None) -> None:
    """Delete the files of an earlier run, because the tool overwrites no file."""
    for file in files:
        if file is not None and file.is_file():
            file.unlink()


class CannotRunError(Exception):
    """The program cannot be started.

    Attributes
    ----------
    code : int
        The exit code, as in shells: 127 if there is no such program, 126 if it cannot be executed; 1 if locks are
        mandatory and the tool cannot be loaded into it.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def cannot_load(program: Path) -> str | None:
    """Why a program runs without the tool; None if the loader loads it. Of a script, only its loader is looked at."""
    try:
        head = elf.read(program)
        facts, capable = program.stat(), "security.capability" in os.listxattr(program)
    except (OSError, struct.error):  # exec reports it
        return None
    if loader := other_loader(program):
        return f"its loader {loader} is not that of glibc"
    if head is None:
        return None
    if facts.st_mode & stat.S_ISUID and facts.st_uid != os.getuid():
        return "it runs as another user"
    if facts.st_mode & stat.S_ISGID and facts.st_gid != os.getgid():
        return "it runs as another group"
    if capable and os.getuid() != 0:
        return "it has capabilities of its own"
    if not head.native:
        return "it is built for another processor architecture"
    if head.loader is None and ".so" not in program.name:  # the program may be the loader itself
        return "it is statically linked"
    return None


def find(name: str) -> str:
    """The path of a program, not normalized, because a script sees it.

    Raises
    ------
    CannotRunError
        There is no such file.
    """
    found = shutil.which(name)
    if found is None and not ("/" in name and Path(name).exists()):
        remedy = "check the path" if "/" in name else f"it is not on PATH; give its path, such as ./{name}"
        raise CannotRunError(f"there is no program {name}: {remedy}", 127)
    return found or name


def become(
    file: str, program: Sequence[str], variables: Mapping[str, str], files: Sequence[Path | None] = ()
) -> NoReturn:
    """Delete the files, and replace this process with the program: its exit code, signals and streams are its own.

    Raises
    ------
    CannotRunError
        The program cannot be executed; or locks are mandatory and the tool cannot be loaded into it. If they are not
        mandatory, the latter is only reported.
    """
    if why := cannot_load(Path(file)):
        text = f"the tool cannot be loaded into {file}, so nothing is locked: {why}"
        if variables.get("PINNING_LOCK_MAPPED", "").lower() == LockMapped.MANDATORY:
            raise CannotRunError(text, 1)
        print(f"pinning: {text}", file=sys.stderr, flush=True)
    make_way(*files)
    restore_signals()
    try:
        execute(file, program, variables)
    except OSError as error:
        raise CannotRunError(f"{file} cannot be executed: {error.strerror}", 126) from None


def restore_signals() -> None:
    """Give the signals that CPython ignores their default action, because exec would keep them ignored.

    A caller that ignored them on purpose is not heeded: CPython keeps no record of what it found, and a parent that
    ignores them itself, such as Python, does not show what it left to its child.
    """
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)


def execute(file: str, program: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Execute a program as execvp and shells do: /bin/sh reads a text that the kernel does not take for a program."""
    try:
        os.execve(file, list(program), variables)
    except OSError as error:
        if error.errno != errno.ENOEXEC or not is_text(Path(file)):
            raise
    os.execve("/bin/sh", ["/bin/sh", file, *program[1:]], variables)


def is_text(file: Path) -> bool:
    """Whether the first line has no null byte, by which shells tell a script from a program for another machine."""
    with file.open("rb") as opened:
        return b"\0" not in opened.readline(256)

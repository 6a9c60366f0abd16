# SPDX-License-Identifier: Apache-2.0
"""``pinning run``: executes a program so that its mapped buffers are locked and its CUDA copies are staged."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import pinning

PT_INTERP = 3  # <elf.h>: the type of the program header that names the loader


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
    path = pinning.library_dirs()[0] / "libpinning_omp.so"
    if not path.is_file():
        raise pinning.PluginUnavailableError(f"{path} is missing: reinstall pinning")
    if set(str(path)) & set(" :"):
        raise pinning.PluginUnavailableError(
            f"LD_PRELOAD does not accept a path with a space or a colon, such as {path}: install pinning "
            "in another folder"
        )
    return path


def environment(
    base: Mapping[str, str],
    lock_mapped: LockMapped | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    copies: Copies | None = None,
) -> dict[str, str]:
    """The environment of a program that runs with the tool: `base`, and the arguments that are not None."""
    preload = [str(library()), *filter(None, [base.get("LD_PRELOAD")])]
    more = {
        "PINNING_LOCK_MAPPED": lock_mapped,
        "PINNING_COPIES": copies,
        "PINNING_REPORT": report and str(report),
        "PINNING_TRACE": trace and str(trace),
        "PINNING_RUN": str(os.getpid()),  # kept by exec: distinguishes the program from its children
    }
    return {**base, "LD_PRELOAD": ":".join(preload), **{name: value for name, value in more.items() if value}}


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
    """Why the loader would silently ignore the tool in a program; None if it would not, and for scripts."""
    try:
        kinds = segments(program)
        facts, capable = program.stat(), "security.capability" in os.listxattr(program)
    except (OSError, struct.error):  # exec reports it
        return None
    if kinds is None:
        return None
    if facts.st_mode & stat.S_ISUID and facts.st_uid != os.getuid():
        return "it runs as another user"
    if facts.st_mode & stat.S_ISGID and facts.st_gid != os.getgid():
        return "it runs as another group"
    if capable and os.getuid() != 0:
        return "it has capabilities of its own"
    if not kinds:
        return "it is built for another processor architecture"
    if PT_INTERP not in kinds and ".so" not in program.name:  # the program may be the loader itself
        return "it is statically linked"
    return None


def segments(program: Path) -> set[int] | None:
    """The types of the segments of an ELF file, empty if it is for another processor; None for other files."""
    with program.open("rb") as file, Path("/proc/self/exe").open("rb") as own:
        head, ours = file.read(64), own.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF":
            return None
        if (head[4:6], head[18:20]) != (ours[4:6], ours[18:20]):  # class, byte order, machine
            return set()
        (table,), (size, count) = struct.unpack_from("=Q", head, 32), struct.unpack_from("=HH", head, 54)
        file.seek(table)
        return {kind for (kind,) in struct.iter_unpack(f"=I{size - 4}x", file.read(size * count))}


def become(program: Sequence[str], variables: Mapping[str, str], files: Sequence[Path | None] = ()) -> NoReturn:
    """Delete the files, and replace this process with the program: its exit code, signals and streams are its own.

    Raises
    ------
    CannotRunError
        There is no such program, or it cannot be executed; or locks are mandatory and the tool cannot be loaded into
        it. If they are not mandatory, the latter is only reported.
    """
    name = program[0]
    found = shutil.which(name)
    if found is None and not ("/" in name and Path(name).exists()):
        remedy = "check the path" if "/" in name else f"it is not on PATH; give its path, such as ./{name}"
        raise CannotRunError(f"there is no program {name}: {remedy}", 127)
    if why := cannot_load(Path(found or name)):
        text = f"the tool cannot be loaded into {found or name}, so nothing is locked: {why}"
        if variables.get("PINNING_LOCK_MAPPED", "").lower() == LockMapped.MANDATORY:
            raise CannotRunError(text, 1)
        print(f"pinning: {text}", file=sys.stderr, flush=True)
    make_way(*files)
    try:
        os.execve(found or name, list(program), dict(variables))
    except OSError as error:
        raise CannotRunError(f"{found or name} cannot be executed: {error.strerror}", 126) from None

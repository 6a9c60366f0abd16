# SPDX-License-Identifier: Apache-2.0
"""``pinning run``: becomes an OpenMP program whose mapped buffers are locked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import pinning


class LockMapped(StrEnum):
    """What `PINNING_LOCK_MAPPED` can be."""

    OFF = "off"
    ON = "on"
    MANDATORY = "mandatory"


def library() -> Path:
    """The tool that is loaded into the program.

    Raises
    ------
    PluginUnavailableError
        It was not built, or the loader would not take its path.
    """
    path = pinning.library_dirs()[0] / "libpinning_omp.so"
    if not path.is_file():
        raise pinning.PluginUnavailableError(f"{path} is missing: install pinning anew")
    if set(str(path)) & set(" :"):
        raise pinning.PluginUnavailableError(
            f"LD_PRELOAD takes no path with a space or a colon, such as {path}: install pinning in another folder"
        )
    return path


def environment(
    base: Mapping[str, str], lock_mapped: LockMapped | None, report: Path | None, trace: Path | None
) -> dict[str, str]:
    """The variables of a program that the tool watches: those of `base`, and what is not None."""
    preload = [str(library()), *filter(None, [base.get("LD_PRELOAD")])]
    more = {
        "PINNING_LOCK_MAPPED": lock_mapped,
        "PINNING_REPORT": report and str(report),
        "PINNING_TRACE": trace and str(trace),
        "PINNING_RUN": str(os.getpid()),  # which the program keeps: that it is the one that was to be watched
    }
    return {**base, "LD_PRELOAD": ":".join(preload), **{name: value for name, value in more.items() if value}}


def make_way(*files: Path | None) -> None:
    """Delete what an earlier run has written there: the tool itself writes over no file."""
    for file in files:
        if file is not None and file.is_file():
            file.unlink()


class CannotRunError(Exception):
    """The program cannot be started.

    Attributes
    ----------
    code : int
        The exit code that shells give for it: 127 where there is no such program, 126 where it cannot be executed.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def become(program: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Go on as this program: its exit code, signals and standard streams are its own.

    Raises
    ------
    CannotRunError
        There is no such program, or it cannot be executed.
    """
    name = program[0]
    found = shutil.which(name)
    if found is None and not ("/" in name and Path(name).exists()):
        raise CannotRunError(f"there is no program {name}: give its path, such as ./{Path(name).name}", 127)
    try:
        os.execve(found or name, list(program), dict(variables))
    except OSError as error:
        raise CannotRunError(f"{found or name} cannot be executed: {error.strerror}", 126) from None

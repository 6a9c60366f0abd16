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
    }
    return {**base, "LD_PRELOAD": ":".join(preload), **{name: value for name, value in more.items() if value}}


def become(program: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Go on as this program: its exit code, signals and standard streams are its own.

    Raises
    ------
    FileNotFoundError, PermissionError
        There is no such program.
    """
    found = shutil.which(program[0])
    if found is None:
        raise FileNotFoundError(f"there is no program {program[0]}: give its path, such as ./{Path(program[0]).name}")
    os.execve(found, list(program), dict(variables))

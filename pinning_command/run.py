# SPDX-License-Identifier: Apache-2.0
"""``pinning run``: executes a program so that its mapped buffers are locked and its CUDA copies are staged.

It imports little, because each program starts only after it: neither `pinning` nor what takes long in Python's library.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import struct
import sys
from contextlib import suppress

from pinning_command import elf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

LIBRARY = "libpinning_run.so"
LIBSTDCXX = "libstdc++.so.6"
# The options, and the words that each takes; None: any text.
OPTIONS: dict[str, tuple[str, ...] | None] = {
    "--lock-mapped": ("off", "on", "mandatory"),
    "--copies": ("off", "on"),
    "--report": ("-",),
    "--report-file": None,
    "--trace": None,
}
# What the files have until a process of the program writes them; native/tool/output.cpp knows these.
UNWRITTEN = {
    "PINNING_REPORT": b"pinning: no report: the program has not ended yet, or it ended by a signal or _exit\n",
    "PINNING_TRACE": b"[]\n",
}
STANDARD_ERROR = ("/dev/stderr", "/dev/fd/2", "/proc/self/fd/2")


def parsed(words: Sequence[str]) -> tuple[list[str], dict[str, str]] | None:
    """The program with its arguments, and the options; None if they are wrong, or ask for help."""
    left, options = list(words), dict[str, str]()
    while left and left[0].startswith("-"):
        name, equals, value = left.pop(0).partition("=")
        if name == "--":
            break
        if name == "--report" and not equals:
            value = "-"
        elif not equals and left:
            value = left.pop(0)
        known = OPTIONS.get(name, ())
        if not value or (known is not None and value not in known):
            return None
        options[name] = value
    return (left, options) if left else None


def start(program: Sequence[str], options: Mapping[str, str]) -> int:
    """Replace this process with the program. Returns only if that cannot be done, which it reports: the exit code."""
    try:
        file = find(program[0])
        report, trace = options.get("--report-file") or options.get("--report"), options.get("--trace")
        if report in STANDARD_ERROR:
            report = "-"
        files = {"PINNING_REPORT": absolute(report), "PINNING_TRACE": absolute(trace)}
        words = {"PINNING_LOCK_MAPPED": options.get("--lock-mapped"), "PINNING_COPIES": options.get("--copies")}
        become(file, program, environment(start_environment(), {**words, **files}, file), files)
    except CannotRunError as error:
        say(str(error))
        return error.code


def say(text: str) -> None:
    """Write a line to standard error, if there is one: otherwise the program starts all the same."""
    if sys.stderr is None:  # its number may be that of a file of the program's
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with suppress(OSError):  # not by `sys.stderr`, which would keep what it cannot write, and try again at the exit
        os.write(sys.stderr.fileno(), f"pinning: {text}\n".encode(errors="surrogateescape"))
    signal.signal(signal.SIGPIPE, before)


def absolute(file: str | None) -> str | None:
    """The path of a file, which the tool writes when the program may be in another folder; "-" is standard error."""
    return file if file in (None, "-") else os.path.abspath(file)


def library() -> str:
    """The path of the tool, the library that is preloaded into the program. Raises CannotRunError."""
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "pinning", "lib", LIBRARY)
    if not os.path.isfile(path):  # an editable installation has it elsewhere
        import pinning

        path = str(pinning.build.library_dirs()[0] / LIBRARY)
    if not os.path.isfile(path):
        raise CannotRunError(f"{path} is missing: reinstall pinning", 1)
    if not may_be_preloaded(path):
        raise CannotRunError(
            f"LD_PRELOAD does not accept a path with a space or a colon, such as {path}: install pinning "
            "in another folder",
            1,
        )
    return path


def may_be_preloaded(path: str) -> bool:
    return not set(path) & set(" :")


def start_environment() -> dict[str, str]:
    """The environment that this process was started with, without entries that exec refuses: those without a name.

    Not `os.environ`: in the C locale, CPython sets LC_CTYPE (PEP 538), which would change the program's locale.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {name: value for name, value in os.environ.items() if name}
    variables: dict[str, str] = {}
    for name, equals, value in (os.fsdecode(entry).partition("=") for entry in entries):
        if name and equals:
            variables.setdefault(name, value)  # of equal names the first counts, as in getenv
    return variables


def environment(
    base: Mapping[str, str], chosen: Mapping[str, str | None] | None = None, program: str | None = None
) -> dict[str, str]:
    """The environment of a program that runs with the tool: `base`, and the variables that are chosen and not None.

    Without the tool if the program's loader would end the program for it.
    """
    preload = [] if program and other_loader(program) else [library()]
    if preload and program and (brought := newer_libstdcxx(program, base)):
        preload.append(brought)
    preload += filter(None, [base.get("LD_PRELOAD")])
    more = {
        **(chosen or {}),
        "PINNING_RUN": str(os.getpid()),  # kept by exec: distinguishes the program from its children
        "LD_PRELOAD": ":".join(preload),
    }
    return {**base, **{name: value for name, value in more.items() if value}}


def other_loader(program: str) -> str | None:
    """The loader of the program, or of a script's interpreter, if it is not glibc's, such as musl's.

    The tool needs glibc: such a loader would not find its functions, and end the program with an error for each.
    """
    file = executed(program)
    try:
        head = elf.read(file)
        if head is None:
            return None
        loader = head.loader or (file if ".so" in os.path.basename(file) else None)
        return None if loader is None or elf.is_glibcs(loader) else loader
    except (OSError, struct.error):  # exec reports it
        return None


def newer_libstdcxx(program: str, variables: Mapping[str, str]) -> str | None:
    """The libstdc++ that the program brings, if it is newer than the one that the loader finds for the tool.

    A process has only one, and the loader looks for the tool's before the program's. A preloaded one precedes both. An
    older one is left to the program, because the programs that it starts inherit LD_PRELOAD and may need a newer one.
    """
    prefix, name = os.path.split(os.path.dirname(executed(program)))
    own = os.path.join(prefix, "lib", LIBSTDCXX)
    if name != "bin" or prefix in ("/", "/usr") or not may_be_preloaded(own):
        return None
    newest = release(own)
    return own if newest >= 0 and newest > max(map(release, libstdcxx_of_loader(variables)), default=-1) else None


def executed(program: str) -> str:
    """What is executed: the program, or the interpreter of a script; if that is env, what env finds on PATH."""
    try:
        with open(program, "rb") as file:
            line = file.readline(256).partition(b"\0")[0]
    except OSError:  # exec reports it
        return program
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return os.path.realpath((which(words[0]) or words[0]) if words else program)


def libstdcxx_of_loader(variables: Mapping[str, str]) -> Iterator[str]:
    """Where the loader finds libstdc++ for the tool, which has none in its own folder; also for other processors."""
    for file in re.split("[ :]", variables.get("LD_PRELOAD", "")):
        if os.path.basename(file) == LIBSTDCXX:
            yield file
    for folder in filter(None, re.split("[:;]", variables.get("LD_LIBRARY_PATH", ""))):
        yield os.path.join(folder, LIBSTDCXX)
    try:
        with open("/etc/ld.so.cache", "rb") as opened:
            cache = opened.read()
    except OSError:
        return
    for name in re.findall(rb"/[^\0]*/%s(?=\0)" % re.escape(LIBSTDCXX).encode(), cache):
        yield os.fsdecode(name)


def release(libstdcxx: str) -> int:
    """N of its newest symbols' version, GLIBCXX_3.4.N; -1 if there is none, or none for this processor."""
    try:
        head = elf.read(libstdcxx)
        if head is None or not head.native:
            return -1
        with open(libstdcxx, "rb") as file:
            return max(map(int, re.findall(rb"GLIBCXX_3\.4\.(\d+)\0", file.read())), default=-1)
    except (OSError, struct.error):
        return -1


def is_of_others(file: str) -> bool:
    """Whether a path is that of a device or an open file, such as /dev/stdout; native/tool/output.cpp knows these."""
    return file.startswith(("/dev/", "/proc/")) and not file.startswith("/dev/shm/")


def make_way(files: Mapping[str, str]) -> None:
    """Replace the files of an earlier run by what stays if no process writes them; the tool overwrites nothing else.

    A device, a pipe or an open file stays as it is.
    """
    for variable, file in files.items():
        try:
            if is_of_others(file) or (os.path.exists(file) and not os.path.isfile(file)):
                if os.path.isdir(file) or not os.access(file, os.W_OK):
                    missing = errno.EACCES if os.path.exists(file) else errno.ENOENT
                    raise OSError(code := errno.EISDIR if os.path.isdir(file) else missing, os.strerror(code))
                continue
            if os.path.lexists(file):
                os.unlink(file)
            with open(file, "xb") as made:
                made.write(UNWRITTEN[variable])
        except OSError as error:
            raise CannotRunError(f"{file} cannot be written: {error.strerror}; nothing was started", 1) from None


class CannotRunError(Exception):
    """The program cannot be started.

    Attributes
    ----------
    code : int
        The exit code, as in shells: 127 if there is no such program, 126 if it cannot be executed; 1 if the tool, its
        report or its trace would be missing although it is mandatory or was asked for.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def cannot_load(program: str) -> str | None:
    """Why a program runs without the tool; None if the loader loads it. Of a script, only its loader is looked at."""
    try:
        head = elf.read(program)
        facts, capable = os.stat(program), "security.capability" in os.listxattr(program)
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
    if head.loader is None and ".so" not in os.path.basename(program):  # the program may be the loader itself
        return "it is statically linked"
    return None


def which(name: str) -> str | None:
    """The file that a shell finds for a name, on PATH if it has no slash; `shutil` takes long to import."""
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(":")
    for path in (os.path.join(folder, name) for folder in folders):
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def find(name: str) -> str:
    """The path of a program, not normalized, because a script sees it. Raises CannotRunError if there is none."""
    found = which(name)
    if found is None and not ("/" in name and os.path.exists(name)):
        remedy = "check the path" if "/" in name else f"it is not on PATH; give its path, such as ./{name}"
        raise CannotRunError(f"there is no program {name}: {remedy}", 127)
    return found or name


def become(
    file: str, program: Sequence[str], variables: Mapping[str, str], files: Mapping[str, str | None]
) -> NoReturn:
    """Replace this process with the program: its exit code, signals and streams are its own.

    That the tool cannot be loaded into it is an error if locks are mandatory or one of the `files` was asked for;
    otherwise it is only reported.
    """
    wanted = {variable: name for variable, name in files.items() if name is not None and name != "-"}
    if why := cannot_load(file):
        text = f"the tool cannot be loaded into {file}, so nothing is locked: {why}"
        if variables.get("PINNING_LOCK_MAPPED", "").lower() == "mandatory":
            raise CannotRunError(text, 1)
        if wanted:
            raise CannotRunError(f"{text}; run it without {' and '.join(wanted.values())}, which it cannot write", 1)
        say(text)
    make_way(wanted)
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
        if error.errno != errno.ENOEXEC or not is_text(file):
            raise
    os.execve("/bin/sh", ["/bin/sh", file, *program[1:]], variables)


def is_text(file: str) -> bool:
    """Whether the first line has no null byte, by which shells tell a script from a program for another machine."""
    with open(file, "rb") as opened:
        return b"\0" not in opened.readline(256)

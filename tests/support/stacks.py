# SPDX-License-Identifier: Apache-2.0
"""Where the threads of a program are when a test kills it because it does not end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def tell_before_killing(*errors: type[BaseException]) -> None:
    """From now on, print the stacks of a program to stderr before it is killed because of one of these errors.

    They say that its time is up, or that of the test that waits for it.
    """
    kill = subprocess.Popen.kill

    def tell_and_kill(process: subprocess.Popen[str]) -> None:
        if isinstance(sys.exception(), errors) and process.returncode is None:
            print(stacks(process.pid), file=sys.stderr)
        kill(process)

    subprocess.Popen.kill = tell_and_kill  # type: ignore[method-assign]


def stacks(pid: int) -> str:
    """Name and state of each thread of a process and of its children, and their stacks if gdb is installed."""
    said, children = [f"process {pid}:"], set()
    for thread in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with suppress(OSError):  # it has ended, or the file may not be read
            status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines())
            said.append(f"  {thread.name} {status['Name']}: {status['State']}, {(thread / 'wchan').read_text()}")
            children |= set((thread / "children").read_text().split()) - {str(os.getpid())}
            said.append(f"    system call {(thread / 'syscall').read_text().strip()}")
    if gdb := shutil.which("gdb"):
        commands = ["-ex", "thread apply all backtrace 40", "-ex", "thread apply all py-bt"]  # if gdb knows Python
        command = [gdb, "-nx", "-batch", "-iex", "set auto-load safe-path /", "-p", str(pid), *commands]
        with suppress(subprocess.TimeoutExpired):
            said.append(subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout)
    return "\n".join([*said, *(stacks(int(child)) for child in sorted(children))])

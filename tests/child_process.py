# SPDX-License-Identifier: Apache-2.0
"""Run a function in a forked child, also as a user without privileges; what it raises fails the test."""

from __future__ import annotations

import os
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

NOBODY = 65534
_SKIPPED = 77


def run_in_child(function: Callable[[], object]) -> None:
    """Run `function` in a child that is killed after five minutes."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(300)
        try:
            function()
            code = 0
        except pytest.skip.Exception as reason:
            os.write(write_end, str(reason).encode())
            code = _SKIPPED
        except BaseException:
            os.write(write_end, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == _SKIPPED:
        pytest.skip(said)
    assert code == 0, f"the child ended with {code}:\n{said}"


def run_as_ordinary_user(function: Callable[[], object], memlock: int = 8 << 20) -> None:
    """Run `function` in a child that has no CAP_IPC_LOCK and an RLIMIT_MEMLOCK of `memlock` bytes."""

    def drop_privileges() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if hard != resource.RLIM_INFINITY and hard < memlock:
            pytest.skip(f"needs a hard RLIMIT_MEMLOCK of {memlock} bytes; here it is {hard}")
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        status = Path("/proc/self/status").read_text()
        capabilities = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
        if capabilities & 1 << 14:
            pytest.skip("needs to give up CAP_IPC_LOCK, and cannot here")
        function()

    run_in_child(drop_privileges)

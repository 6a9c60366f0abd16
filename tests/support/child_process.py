# SPDX-License-Identifier: Apache-2.0
"""Run a function in a forked child, also as a user limited by RLIMIT_MEMLOCK; what it raises fails the test."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

_CAP_SETPCAP, _CAP_IPC_LOCK = 8, 14
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION_3 = 0x20080522
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


def ordinary_user(memlock: int) -> Callable[[], None]:
    """Return a function that limits a child of fork, and the program it starts, to `memlock` bytes of locked memory.

    Root stays root, without CAP_IPC_LOCK: another user could enter neither a private folder with the checkout nor one
    with the interpreter.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and hard < memlock:
        pytest.skip(f"needs a hard RLIMIT_MEMLOCK of {memlock} bytes; here it is {hard}")
    in_reach = os.geteuid() == 0 and _has("CapBnd", _CAP_IPC_LOCK)  # a program that root starts would get it back
    if in_reach and not _has("CapEff", _CAP_SETPCAP):
        pytest.skip("needs to give up CAP_IPC_LOCK, and this root may not: it lacks CAP_SETPCAP")
    libc = ctypes.CDLL(None, use_errno=True)

    def become() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))
        header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
        for i in range(3):  # effective, permitted, inheritable
            sets[i] &= ~(1 << _CAP_IPC_LOCK)
        if in_reach:
            assert libc.prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
        assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())

    return become


def run_as_ordinary_user(function: Callable[[], object], memlock: int = 8 << 20) -> None:
    """Run `function` in a child that has no CAP_IPC_LOCK and an RLIMIT_MEMLOCK of `memlock` bytes."""
    become = ordinary_user(memlock)

    def run() -> None:
        become()
        function()

    run_in_child(run)


def _has(which: str, capability: int) -> bool:
    """Whether this process has a capability in a set, such as ``"CapEff"``."""
    status = Path("/proc/self/status").read_text()
    return any(int(line.split()[1], 16) >> capability & 1 for line in status.splitlines() if line.startswith(which))


def in_a_small_file_system(program: str) -> None:
    """Run a program with its own, empty /dev/shm of 4 MiB."""
    enter = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    mount = "mount -t tmpfs -o size=4M tmpfs /dev/shm"
    try:
        subprocess.run([*enter, "sh", "-c", mount], check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a mount namespace: unshare -m")
    done = subprocess.run(
        [*enter, "sh", "-c", f'{mount} && exec "$0" -W error -c "$1"', sys.executable, program],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

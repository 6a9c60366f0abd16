# SPDX-License-Identifier: Apache-2.0
"""Work that is submitted while the program exits: what it uses lives until the process ends."""

from __future__ import annotations

import pytest

import submits_at_exit
from limits import needs_room_to_lock
from own_process import python


def run_program(*command: str) -> tuple[int, str, str]:
    done = python(*command)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("operation", submits_at_exit.OPERATIONS)
def test_daemon_threads_go_on_submitting_until_the_end(operation: str) -> None:
    needs_room_to_lock(4 << 20)
    assert run_program("-W", "ignore", submits_at_exit.__file__, "host", operation) == (0, "", "")


@pytest.mark.parametrize("waits", [True, False])
def test_an_exit_handler_that_runs_after_ours_submits(waits: bool) -> None:
    """Registered before pinning is imported, it runs later."""
    code, said, errors = run_program(
        "-c",
        f"""
import atexit, os, time

class Called:
    def __del__(self, write=os.write): write(1, b"destroyed ")
    def __call__(self, write=os.write): write(1, b"called ")

def late():
    queue = pinning.Queue("host")
    queue.call(lambda: time.sleep(0.2))
    queue.call(Called())
    del queue
    reused = [bytearray(100) for _ in range(100000)]
    time.sleep(2 if {waits} else 0)

atexit.register(late)
import pinning
""",
    )
    assert (code, errors) == (0, "")
    assert said == ("called " if waits else "")


def test_a_queue_calls_a_function_after_the_interpreter_has_ended() -> None:
    """The C library's handlers still run then; a call of Python would crash."""
    assert run_program(
        "-c",
        """
import atexit, ctypes, os, sys

def late():
    queue = pinning.Queue("host")
    sleep = ctypes.cast(libc.usleep, ctypes.c_void_p).value
    queue.submit(lambda vendor: vendor.call(sleep, 500_000))
    queue.call(lambda: os.write(1, b"called"))

atexit.register(late)
import pinning

libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # with the exit status as its argument: 2 seconds
sys.exit(2)
""",
    ) == (2, "", "")

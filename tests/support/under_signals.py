# SPDX-License-Identifier: Apache-2.0
"""A program that sends itself SIGINT at random moments of a scenario, and checks that all is as before.

    under_signals.py SIGNALS SEED SCENARIO...      prints what went wrong

The kernel sends the signals, so they also arrive in the middle of C code and of vendor calls; Python raises Ctrl-C when
it next handles signals. After each signal the program gives back what the scenario was given.
"""

from __future__ import annotations

import ctypes
import faulthandler
import random
import signal
import sys
import time
import warnings
from types import FrameType

from interrupted import Findings, Given, differences, give_back, on_the_way_of, prepare, works_again

HANG = 120.0  # seconds after which a scenario counts as hung
EACH = 16  # signals after which all is compared


class Timer:
    """A kernel timer that sends SIGINT once."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("librt.so.1", use_errno=True)
        self._id = ctypes.c_void_p()
        sigevent = (ctypes.c_int32 * 16)(0, 0, signal.SIGINT, 0)  # value, signal, SIGEV_SIGNAL
        self._check(self._library.timer_create(time.CLOCK_MONOTONIC, sigevent, ctypes.byref(self._id)))

    def set(self, seconds: float) -> None:
        nanoseconds = int(seconds * 1e9) + 1
        itimerspec = (ctypes.c_long * 4)(0, 0, *divmod(nanoseconds, 10**9))
        self._check(self._library.timer_settime(self._id, 0, itimerspec, None))

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), "no timer")


def interrupt(name: str, signals: int, seed: int) -> int:
    """Run a scenario until `signals` signals came; return the number of problems."""
    came, armed = 0, False

    def raise_once(number: int, frame: FrameType | None) -> None:
        nonlocal came, armed
        came += 1
        if armed:
            armed = False  # cleanup is not interrupted
            raise KeyboardInterrupt

    scenario, timer, draw = prepare(name), Timer(), random.Random(seed)
    signal.signal(signal.SIGINT, raise_once)
    faulthandler.dump_traceback_later(HANG, exit=True)  # by a thread of its own
    findings, interrupted = Findings(name), 0
    longest = 1e-4  # seconds that a scenario takes, about
    while came < signals:
        faulthandler.dump_traceback_later(HANG, exit=True)
        given: Given = []
        problems: list[str] = []
        at = came
        began = time.monotonic()
        try:
            armed = True
            timer.set(draw.uniform(0, longest))
            while came == at:
                scenario(given)
                given.clear()
                longest = 0.9 * longest + 0.1 * (time.monotonic() - began)
                began = time.monotonic()
        except BaseException as error:
            interrupted += 1
            if not on_the_way_of(KeyboardInterrupt, error):
                problems.append(f"raises {error!r} instead")
        armed = False
        problems += give_back(given)
        if came % EACH == 0 or came >= signals:
            problems += differences(findings.before)
            problems += works_again(scenario, given)
        findings.tell(str(came), problems)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(f"{name}: {interrupted} of {came} signals interrupted", file=sys.stderr)
    return findings.count


def main(signals: int, seed: int, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # Python reports what a destructor raises, and continues
    wrong = sum(interrupt(name, signals, seed) for name in names)
    faulthandler.cancel_dump_traceback_later()
    print(f"{signals} signals each, {wrong} problems", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

# SPDX-License-Identifier: Apache-2.0
"""Raises an exception at one bytecode of ours after another, and sees that all is as it was: a program of its own.

    every_bytecode.py SCENARIO EXCEPTION FIRST STEP      at bytecodes FIRST, FIRST + STEP, ...; prints what went wrong

A scenario of interrupted.py is done as often as it has bytecodes. Afterwards the user gives back what he was given,
whatever was raised elsewhere is given back by its destructor, and the pages that the kernel has locked, the regions of
the map, the pool's figures and the threads are what they were before; then the same once more, undisturbed, works.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pinning
import pinning_host
from interrupted import differences, give_back, on_the_way_of, prepare, state, works_again

HANG = 120.0  # seconds, after which a scenario has stopped for good
OURS = tuple(str(Path(package.__file__).parent) for package in (pinning, pinning_host))


class Injection:
    """Raises at the bytecode of this number, counted over all frames of ours."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at, self.error = at, error
        self.seen = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        if event == "opcode":
            self.seen += 1
            if self.seen == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
                raise self.error
        return self.step


def main(name: str, error: type[BaseException], first: int, step: int) -> None:
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # Python tells of what is raised in a destructor, and goes on
    scenario = prepare(name)
    gc.disable()  # so that the same is done each time
    faulthandler.dump_traceback_later(HANG, exit=True)  # by a thread of its own
    before = state()
    at, wrong, points = first, 0, 0
    while True:
        faulthandler.dump_traceback_later(HANG, exit=True)
        injection, given, problems = Injection(at, error), [], []
        sys.settrace(injection)
        try:
            scenario(given)
        except error:
            pass
        except BaseException as other:
            if not injection.where:
                raise
            if not on_the_way_of(error, other):
                problems.append(f"raises {other!r} instead")
        finally:
            sys.settrace(None)
        if not injection.where:
            break
        points += 1
        problems += give_back(given)
        problems += differences(before)
        problems += works_again(scenario, given)
        for problem in problems:
            wrong += 1
            print(f"{at} {injection.where}: {problem}", flush=True)
        at += step
    faulthandler.cancel_dump_traceback_later()
    print(f"{points} of {injection.seen} bytecodes, {wrong} problems", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], {"KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError}[sys.argv[2]],
         int(sys.argv[3]), int(sys.argv[4]))  # fmt: skip

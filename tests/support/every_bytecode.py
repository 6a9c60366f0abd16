# SPDX-License-Identifier: Apache-2.0
"""Raises an exception at one bytecode of ours after another, and sees that all is as it was: a program of its own.

    every_bytecode.py EXCEPTION FIRST STEP SCENARIO...      at bytecodes FIRST, FIRST + STEP, ...; prints what is wrong

A scenario of interrupted.py is done as often as it has bytecodes. Afterwards the user gives back what he was given,
whatever was raised elsewhere is given back by its destructor, and the pages that the kernel has locked, the regions of
the map, the pool's figures and the threads are what they were before; then the same once more, undisturbed, works.

The kernel takes milliseconds to tell the mappings, so these are compared after a group of bytecodes. A mapping that is
lost stays lost, and so shows then; which bytecode it was is found out by doing the group once more, singly.
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
from interrupted import Findings, differences, give_back, on_the_way_of, prepare, state, works_again

HANG = 120.0  # seconds, after which a scenario has stopped for good
GROUP = 32  # bytecodes
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


class Disturbed:
    """A scenario that is interrupted at one bytecode after another."""

    def __init__(self, name: str, error: type[BaseException]) -> None:
        self.error = error
        faulthandler.dump_traceback_later(HANG, exit=True)  # by a thread of its own
        self.scenario = prepare(name)
        self.findings = Findings(name)

    def at(self, number: int, whole: bool) -> Injection:
        """Do it, interrupted at the bytecode of this number, if it has so many; and say what is not as before."""
        faulthandler.dump_traceback_later(HANG, exit=True)
        injection, given, problems = Injection(number, self.error), [], []
        sys.settrace(injection)
        try:
            self.scenario(given)
        except self.error:
            pass
        except BaseException as other:
            if not injection.where:
                raise
            if not on_the_way_of(self.error, other):
                problems.append(f"raises {other!r} instead")
        finally:
            sys.settrace(None)
        if injection.where:
            problems += give_back(given)
            problems += differences(self.findings.before, whole)
            problems += works_again(self.scenario, given)
            self.findings.tell(f"{number} {injection.where}", problems)
        return injection

    def group(self, first: int, step: int) -> Injection:
        """Do it at some bytecodes, and compare all afterwards: a leak does not go away. If there is one, go back."""
        numbers = range(first, first + GROUP * step, step)
        for number in numbers:
            injection = self.at(number, whole=False)
            if not injection.where:
                break
        faulthandler.dump_traceback_later(HANG, exit=True)
        found = differences(self.findings.before)
        if found:
            self.findings.before, count = state(), self.findings.count
            for each in numbers:
                self.at(each, whole=True)
            if self.findings.count == count:
                self.findings.tell(f"{first} to {number}, in none of them alone", found)
        return injection


def main(error: type[BaseException], first: int, step: int, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # Python tells of what is raised in a destructor, and goes on
    points = wrong = 0
    for name in names:
        gc.enable()
        disturbed = Disturbed(name, error)
        gc.disable()  # so that the same is done each time
        at = first
        while (injection := disturbed.group(at, step)).where:
            at += GROUP * step
        points += len(range(first, injection.seen + 1, step))
        wrong += disturbed.findings.count
    faulthandler.cancel_dump_traceback_later()
    print(f"{points} bytecodes, {wrong} problems", flush=True)


if __name__ == "__main__":
    main({"KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError}[sys.argv[1]],
         int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])  # fmt: skip

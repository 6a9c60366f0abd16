# SPDX-License-Identifier: Apache-2.0
"""A program that raises an exception at one bytecode of ours after another, and checks that all is as before.

    every_bytecode.py EXCEPTION FIRST STEP SCENARIO...      at bytecodes FIRST, FIRST + STEP, ...; prints what is wrong

A scenario of interrupted.py runs once for each of its bytecodes. Afterwards the program gives back what the scenario
was given, and destructors give back the rest. Then the pages that the kernel has locked, the regions of the map, the
pools' figures and the threads must be as before, and the scenario must work once more, undisturbed.

The kernel takes milliseconds to list the mappings, so these are compared after a group of bytecodes. A leaked mapping
stays, and so shows then; running the group again, one bytecode at a time, shows which bytecode it was.
"""

from __future__ import annotations

import dis
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

HANG = 120.0  # seconds after which a scenario counts as hung
GROUP = 32  # bytecodes
OURS = tuple(str(Path(package.__file__).parent) for package in (pinning, pinning_host))


# Nothing raises at these. An exception there would leave the one that was handled before on the interpreter's stack,
# and so alive with all frames of its traceback. It is raised at the next one instead.
NEVER_RAISE = {dis.opmap[name] for name in ("PUSH_EXC_INFO", "POP_EXCEPT")}


class Injection:
    """Raises at the bytecode with this number, counted over all frames of our code."""

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
            if self.seen >= self.at and not self.where and frame.f_code.co_code[frame.f_lasti] not in NEVER_RAISE:
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
        """Run it, interrupted at the bytecode with this number if there is one; report what is not as before."""
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
        """Interrupt at a group of bytecodes, then compare everything, as leaks stay; if there is one, repeat each."""
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
    sys.unraisablehook = lambda _: None  # Python reports what a destructor raises, and continues
    points = wrong = 0
    for name in names:
        gc.enable()
        disturbed = Disturbed(name, error)
        gc.disable()  # so that each run executes the same bytecodes
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

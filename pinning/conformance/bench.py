# SPDX-License-Identifier: Apache-2.0
"""What is locked and what the driver holds, before and after each failure of the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pinning.conformance.faults import Faults, each_failure, nothing
from pinning.conformance.memory import PAGE, Pages
from pinning.plugin import Device


class Bench:
    """A device whose driver calls can fail, and six pages of memory.

    Attributes
    ----------
    device : Device
    faults : Faults
    pages : Pages
    """

    def __init__(self, device: Device, faults: Faults) -> None:
        self.device: Device = device
        self.faults: Faults = faults
        self.pages: Pages = Pages(6)

    def state(self) -> tuple[object, ...]:
        """What the driver holds and what is locked, from the stand-in, the kernel and the device."""
        tells = [self.device.is_pinned_ptr(self.pages.ptr + page * PAGE + 200) for page in range(6)]
        return self.faults.held(), self._locked_pages(), tells

    def every_call_fails(
        self, act: Callable[[], object], undo: Callable[[], object] = nothing, check: Callable[[], object] = nothing
    ) -> int:
        """Let each driver call of `act` fail in turn; the state must then be as before, and `check` must pass.

        `undo` is called if `act` succeeds; a query needs none. A first round creates what the plugin creates only once.

        Returns
        -------
        int
            How many calls have failed; 0 if `act` makes no driver call.
        """
        act()
        undo()
        before, failures = self.state(), 0

        def succeeded() -> None:
            assert undo is nothing or not failures or self.state() != before, (
                "it succeeded, and the driver holds what it held"
            )
            undo()

        for _ in each_failure(self.faults, act, succeeded):
            failures += 1
            assert self.state() == before
            check()
        assert self.state() == before
        return failures

    def _locked_pages(self) -> set[int]:
        """The numbers of the pages that the kernel has locked: ``lo`` in smaps."""
        pages, found, low, high = self.pages, set[int](), 0, 0
        for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
            first = line.split(" ", 1)[0]
            if "-" in first and not first.endswith(":"):
                low, high = (int(address, 16) for address in first.split("-"))
            elif first == "VmFlags:" and "lo" in line.split():
                inside = range(max(low, pages.ptr), min(high, pages.ptr + pages.size), PAGE)
                found.update((page - pages.ptr) // PAGE for page in inside)
        return found

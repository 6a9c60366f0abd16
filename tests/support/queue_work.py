# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests of queues: work that does nothing, things to keep alive, separate programs."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pinning
from own_process import QUIET, python
from pinning.conformance.holding import HeldQueue


@contextmanager
def holding(queue: pinning.Queue) -> Iterator[HeldQueue]:
    """Hold a queue until the end of the block, or until it is released."""
    held: list[HeldQueue] = []
    queue.submit(lambda vendor: held.append(HeldQueue(vendor)))
    try:
        yield held[0]
    finally:
        held[0].release()


class Thing:
    """Something to keep alive."""


def work(vendor: object) -> None:
    """Work for a queue of a `FakeMemoryDevice`: a step that does nothing."""
    vendor.mark(lambda: None)  # type: ignore[attr-defined]


def program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has pinning and `Queue`, and can import what tests can, until its process ends."""
    prelude = "import os, sys, threading, time\nimport pinning\nfrom pinning.queues import Queue\n"
    return python("-X", "dev", *QUIET, "-c", prelude + textwrap.dedent(text))

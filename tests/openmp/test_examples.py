# SPDX-License-Identifier: Apache-2.0
"""Each example of examples/openmp does the same with the tool as without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from programs import EXAMPLES, run, run_plain

ARGUMENTS = {"stream": [2, 4], "stencil": [256, 20], "small_maps": [3], "nested": [256], "threads": [128]}
POLICIES: dict[str, dict[str, object]] = {
    "as by default": {},
    "everything": {"lock_min_bytes": 1, "lock_after": 1},
    "small buffers": {"lock_min_bytes": 4096},
    "until unmapped": {"lock_min_bytes": 4096, "lock_until": "unmapped"},
    "loaded by the runtime": {"lock_min_bytes": 4096, "preload": False},
    "little room": {"lock_min_bytes": 4096, "lock_after": 1, "lock_budget": "300KiB"},
    "off": {"lock_mapped": "off"},
}


def test_all_examples_are_here() -> None:
    assert {source.stem for source in EXAMPLES.glob("*.c")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_does_the_same_with_the_tool(name: str, program: Callable[[Path], Path]) -> None:
    built = program(EXAMPLES / f"{name}.c")
    plain = run_plain(built, *ARGUMENTS[name])
    assert plain.code == 0
    assert plain.out
    for policy, variables in POLICIES.items():
        ran = run(built, *ARGUMENTS[name], **variables)
        assert (ran.code, ran.out) == (plain.code, plain.out), policy
        assert not any("stays locked" in line for line in ran.said), ran.errors


@pytest.mark.parametrize("name", ["stream", "nested", "threads"])
def test_most_of_what_it_moves_again_and_again_is_locked(name: str, program: Callable[[Path], Path]) -> None:
    ran = run(program(EXAMPLES / f"{name}.c"), *ARGUMENTS[name], lock_min_bytes=32768)
    for direction in ("to", "from"):
        fast, other = ran.moved(direction)
        assert fast > 0
        assert name != "stream" or fast > other


def test_small_buffers_are_left_alone(program: Callable[[Path], Path]) -> None:
    ran = run(program(EXAMPLES / "small_maps.c"), 3)
    assert ran.locked == 0

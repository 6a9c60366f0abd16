# SPDX-License-Identifier: Apache-2.0
"""Batches on a real GPU: random batches against NumPy, by each engine, aligned or not, locked or not."""

from __future__ import annotations

import numpy
import pytest

import pinning
from batches import check_batch
from noise import noise

SIZE = 32 << 20


@pytest.mark.parametrize("inwards", [True, False])
@pytest.mark.parametrize("locked", [(0, 0), (0, SIZE), (12345, SIZE // 2 + 7)])
@pytest.mark.parametrize("engine", ["auto", "copy", "kernel"])
@pytest.mark.parametrize("step", [1, 4, 8, 16, 4096])
def test_a_batch_is_what_numpy_would_copy(
    queue: pinning.Queue, step: int, engine: str, locked: tuple[int, int], inwards: bool
) -> None:
    draw = numpy.random.default_rng(step)
    sizes = numpy.concatenate([draw.integers(1, 40, 300), draw.integers(1, 70000, 200), [3 << 20]]) * 1
    sizes = -(-sizes // step) * step
    to = numpy.cumsum(sizes) - sizes
    origin = draw.integers(0, (SIZE - sizes) // step) * step
    ends = noise(SIZE, step), noise(SIZE, step + 1)
    check_batch(queue, *ends, to, origin, sizes, inwards, slice(*locked), engine=engine)


@pytest.mark.parametrize("inwards", [True, False])
def test_every_alignment_of_one_end_to_the_other(queue: pinning.Queue, inwards: bool) -> None:
    draw = numpy.random.default_rng(7)
    room = 8192
    a, b, which = (each.ravel() for each in numpy.meshgrid(range(32), range(32), range(4), indexing="ij"))
    sizes = draw.integers([1, 17, 1000, 4000], [17, 100, 1100, 4200])[which]
    sizes += draw.integers(0, 33, sizes.size)
    to = numpy.arange(sizes.size) * room + a
    origin = draw.permutation(sizes.size) * room + b
    ends = noise(sizes.size * room, 1), noise(sizes.size * room, 2)
    check_batch(queue, *ends, to, origin, sizes, inwards, slice(None), engine="kernel")

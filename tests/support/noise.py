# SPDX-License-Identifier: Apache-2.0
"""Bytes that no mistake produces by chance."""

from __future__ import annotations

import math

import numpy


def noise(shape: int | tuple[int, ...], seed: int = 1) -> numpy.ndarray:
    size = shape if isinstance(shape, int) else math.prod(shape)
    words = numpy.random.default_rng(seed).integers(0, 1 << 64, -(-size // 8), numpy.uint64)  # far quicker than bytes
    return words.view(numpy.uint8)[:size].reshape(shape)

# SPDX-License-Identifier: Apache-2.0
"""Bytes that no mistake produces by chance."""

from __future__ import annotations

import numpy


def noise(shape: int | tuple[int, ...], seed: int = 1) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, 256, shape, dtype=numpy.uint8)

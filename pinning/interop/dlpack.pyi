# SPDX-License-Identifier: Apache-2.0
from typing import NamedTuple

class Tensor(NamedTuple):
    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    lanes: int
    read_only: bool | None
    owner: object

def make_capsule(
    owner: object,
    ptr: int,
    device: tuple[int, int],
    code: int,
    bits: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    versioned: bool,
    read_only: bool,
    copied: bool,
) -> object: ...
def take_capsule(capsule: object) -> Tensor: ...

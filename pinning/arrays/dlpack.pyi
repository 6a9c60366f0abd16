# SPDX-License-Identifier: Apache-2.0
"""Capsules of DLPack, made and opened."""

from typing import NamedTuple

class Tensor(NamedTuple):
    """What is in a capsule.

    Attributes
    ----------
    ptr : int
        Address of the first element.
    shape, strides : tuple of int
        Strides in elements; None for those of an array in C order.
    code, bits, lanes : int
        The type of its elements, as DLPack has them.
    read_only : bool
    owner : object
        As long as this is referenced the memory stays.
    """

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    lanes: int
    read_only: bool
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
) -> object:
    """A capsule with a tensor that keeps `owner`; of the protocol with versions, 1.0, or of the one before."""

def take_capsule(capsule: object) -> Tensor:
    """Open a capsule; nobody can open it again.

    Raises
    ------
    BufferError
        It has been opened already, or is of a version that is not known here.
    TypeError
        It is no capsule.
    """

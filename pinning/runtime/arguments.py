# SPDX-License-Identifier: Apache-2.0
"""Checks of callers' arguments."""

from __future__ import annotations

import errno
import math
import operator
import os
import sys
from collections.abc import Iterable
from typing import Any, SupportsIndex

from pinning.errors import ArgumentError, InvalidRangeError

MOST_BYTES = sys.maxsize
_BYTES = "the number of bytes"
_LONGEST = 80  # characters of a value in an error


def describe(value: object) -> str:
    """Describe a value for an error message: in full if that is short."""
    if isinstance(value, (str, bytes, int, float, type(None))):
        text = repr(value[:_LONGEST] if isinstance(value, (str, bytes)) else value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def integer(value: SupportsIndex, name: str, what: str = _BYTES) -> int:
    """Convert an integer of any type; TypeError for anything else, including whole floats and bools."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} is {describe(value)}; it must be an integer, {what}")


def integers(values: SupportsIndex | Iterable[SupportsIndex], name: str, what: str) -> tuple[int, ...]:
    """Convert one integer, or several, to a tuple, each as `integer` does; the TypeError names the wrong one."""
    several: Any = values
    try:
        items = None if isinstance(values, (str, bytes)) else tuple(several)
    except TypeError:  # also of an array without dimensions
        items = None
    if items is None:
        return (integer(several, name, f"{what}, or several"),)
    return tuple(integer(each, f"{name}[{i}]", what) for i, each in enumerate(items))


def flag(value: bool, name: str) -> bool:
    """Check a bool; TypeError for anything else, because a string such as "off" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {describe(value)}; it must be True or False")
    return value


def byte_count(
    value: SupportsIndex, name: str = "nbytes", least: int = 1, what: str = _BYTES, most: int = MOST_BYTES
) -> int:
    """Check a number of bytes, by default of any memory or file; TypeError, or InvalidRangeError if out of bounds."""
    count = integer(value, name, what)
    if not least <= count <= most:
        raise InvalidRangeError(f"{name} is {describe(count)}; it must lie between {least} and {most}, in bytes")
    return count


def alignment(value: SupportsIndex) -> int:
    """Check a power of two; raises as `byte_count`."""
    count = byte_count(value, "alignment", most=1 << 30)  # no page is larger
    if count & (count - 1):
        raise InvalidRangeError(f"alignment is {count}; it must be a power of two")
    return count


def seconds(value: float | None, name: str = "timeout") -> float | None:
    """Check a time to wait, None if unlimited; TypeError if it is not a number, InvalidRangeError if it is nan."""
    if value is None:
        return None
    what = "a number of seconds, or None to wait forever"
    count = number(value, name, what)
    if math.isnan(count):
        raise InvalidRangeError(f"{name} is {describe(value)}; it must be {what}")
    return count


def number(value: float, name: str, what: str) -> float:
    """Convert a number; TypeError for anything else, including strings."""
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"{name} is {describe(value)}; it must be {what}")


def path_name(path: Any, name: str = "path") -> str:
    """Convert a path to a string. TypeError; ArgumentError if no file has such a name; FileNotFoundError if empty."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"{name} is {describe(path)}; it must be a path: a string, bytes or an os.PathLike") from None
    if "\0" in text:
        raise ArgumentError(f"{name} is {describe(text)}; no file has a null character in its name")
    if not text:
        raise FileNotFoundError(errno.ENOENT, f"{name} is empty", "")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} is {text[:_LONGEST]!a}; no file has an unpaired surrogate in its name") from None
    return text


def is_one_of(value: object, *names: str) -> bool:
    """Whether a value of any type is one of these names."""
    return isinstance(value, str) and value in names

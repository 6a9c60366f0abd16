# SPDX-License-Identifier: Apache-2.0
"""Every exception that `pinning` raises, all importable from `pinning`."""

from __future__ import annotations


class PinningError(Exception):
    """Base of all errors of this package."""


class InvalidRangeError(PinningError, ValueError):
    """A range that cannot be locked: null, empty, negative, past the top of the address space, not host memory."""


class PartialOverlapError(InvalidRangeError):
    """A range that shares bytes with a locked region without lying inside it."""


class NotLockedError(PinningError, LookupError):
    """The address lies in no locked region."""


class StillLockedError(PinningError):
    """What is locked forbids this: a registration that someone holds a lock in cannot go; a range that is half unlocked
    cannot be locked; a lock inside a coarse-grained region cannot be coherent."""


class GraphCaptureError(PinningError):
    """What a stream under capture cannot record into its graph. It is refused before the driver is called, and the
    capture goes on."""


class StillInUseError(PinningError):
    """Memory that a queue still uses cannot be freed; what still has allocations cannot be closed."""


class PoolLimitError(PinningError, MemoryError):
    """The allocation would take a pool over its maximum."""


class LayoutError(PinningError, ValueError):
    """Shape, strides, order or dtype of an array do not fit."""


class LockLimitError(PinningError, MemoryError):
    """The lock would exceed a limit of this machine; the message says which one and how to raise it."""


class FileError(PinningError, OSError):
    """A file cannot be read or written as asked; ``errno``, ``strerror`` and ``filename`` are those of an `OSError`."""


class FileFormatError(PinningError, ValueError):
    """A file is not what its format says; the message names the file, what is wrong, and where."""


class RegistrarError(PinningError, RuntimeError):
    """A registrar of a map refused a region, or did not give one back; the message names it, and ``__cause__`` is what
    it raised."""


class VendorError(PinningError, RuntimeError):
    """A vendor's call failed.

    Parameters
    ----------
    call : str
        The vendor's function, such as ``"cuMemHostRegister"``.
    code : int
        What it returned.
    name : str
        The vendor's name of that code, such as ``"CUDA_ERROR_INVALID_VALUE"``.
    advice : str, optional
        What the caller can do about it.
    """

    def __init__(self, call: str, code: int, name: str, advice: str = "") -> None:
        super().__init__(call, code, name, advice)
        self.call = call
        self.code = code
        self.name = name
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.call} failed: {self.name} ({self.code})" + (f"; {self.advice}" if self.advice else "")


class OutOfMemoryError(VendorError, MemoryError):
    """A vendor's call failed for want of memory. `LockLimitError` and `PoolLimitError` are a `MemoryError` too."""


class AlreadyPinnedError(VendorError):
    """The vendor says that someone has pinned this memory already, in whole or in part."""


class PluginUnavailableError(PinningError):
    """A vendor's driver, library or device is missing; the message says which and what to install."""

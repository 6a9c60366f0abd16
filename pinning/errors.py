# SPDX-License-Identifier: Apache-2.0
"""Every exception that `pinning` raises, all importable from `pinning`."""

from __future__ import annotations


class PinningError(Exception):
    """Base of all errors of this package."""


class ArgumentError(PinningError, ValueError):
    """An argument has a value that is not allowed, such as the name of an option or a device, or does not go with
    another argument; the message names the allowed ones. Numbers out of bounds are an `InvalidRangeError`."""


class InvalidRangeError(PinningError, ValueError):
    """An address, a size, an index or another number is out of bounds; or a range cannot be locked: null, empty,
    negative, past the end of the address space, or not host memory."""


class PartialOverlapError(InvalidRangeError):
    """A range that shares bytes with a locked region, or with what others have pinned, without lying inside it.

    Attributes
    ----------
    wanted, region, both : tuple of int
        The refused range, the first region that it overlaps, and the range that covers it and all that it overlaps,
        each as ``(address, size)``, which `lock` takes.
    """

    def __init__(self, message: str, wanted: tuple[int, int], region: tuple[int, int], both: tuple[int, int]) -> None:
        super().__init__(message, wanted, region, both)
        self.wanted = wanted
        self.region = region
        self.both = both

    def __str__(self) -> str:
        return str(self.args[0])


class NotLockedError(PinningError, LookupError):
    """The address lies in no locked region."""


class StillLockedError(PinningError):
    """A lock forbids this: a registration that holds locks cannot be removed, a half unlocked range cannot be locked,
    and a lock inside a coarse-grained region cannot be coherent."""


class GraphCaptureError(PinningError):
    """A stream under capture cannot record this into its graph. It is refused before the driver is called, and the
    capture continues."""


class StillInUseError(PinningError):
    """Memory that a queue still uses cannot be freed; a pool or context with allocations cannot be closed."""


class PoolLimitError(PinningError, MemoryError):
    """The allocation would take a pool over its maximum."""


class LayoutError(PinningError, ValueError):
    """An array's shape, strides, order or dtype does not fit."""


class LockLimitError(PinningError, MemoryError):
    """The lock would exceed a limit; the message names the limit and how to raise it."""


class FileError(PinningError, OSError):
    """A file cannot be read or written as asked; ``errno``, ``strerror`` and ``filename`` are those of an `OSError`."""


class FileFormatError(PinningError, ValueError):
    """A file violates its format; the message names the file, the violation and its place."""


class RegistrarError(PinningError, RuntimeError):
    """A registrar of a map failed to register or unregister a region. The message names the registrar; ``__cause__`` is
    the exception that it raised."""


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
        What the caller can do.
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
    """A vendor's call failed for lack of memory. `LockLimitError` and `PoolLimitError` are `MemoryError` too."""


class AlreadyPinnedError(VendorError):
    """The vendor reports that this memory is already pinned, in whole or in part."""


class PluginUnavailableError(PinningError):
    """A vendor's driver, library or device is missing; the message names it and what to install."""

# SPDX-License-Identifier: Apache-2.0
"""Locking of buffers that a runtime maps, as methods of a device."""

from __future__ import annotations

from typing import ClassVar, Protocol

from pinning.plugin.locking import NamedDevice


class LocksMapped(Protocol):
    """The implementation: `pinning.locking.mapped`, on which this interface does not depend."""

    def lock_mapped(self, device: object, buffer: object, size: int | None) -> int | None: ...

    def unlock_unmapped(self, device: object, buffer: object) -> None: ...


class AutomaticLocking(NamedDevice):
    """A base class that gives a device `lock_mapped` and `unlock_unmapped`."""

    _locks_mapped: ClassVar[LocksMapped]  # set by pinning.locking.mapped, so that nothing is imported here

    def lock_mapped(self, buffer: object, size: int | None = None) -> int | None:
        """Lock a buffer that is being mapped to this device, as ``PINNING_LOCK_MAPPED`` says.

        See `pinning.locking.mapped.lock_mapped`.

        Parameters
        ----------
        buffer : object
            Anything that `pinning.lock` takes, or an address.
        size : int, optional
            Bytes; needed with an address.

        Returns
        -------
        int or None
            The device-accessible pointer of its first byte; None if it is not locked now.
        """
        return self._locks_mapped.lock_mapped(self, buffer, size)

    def unlock_unmapped(self, buffer: object) -> None:
        """Undo one `lock_mapped` of a buffer with this address, if it locked anything.

        Parameters
        ----------
        buffer : object
            As for `lock_mapped`.
        """
        self._locks_mapped.unlock_unmapped(self, buffer)

# SPDX-License-Identifier: Apache-2.0
"""Locking of buffers that a runtime maps, as methods of a device."""

from __future__ import annotations

from typing import Any, ClassVar

from pinning.plugin.locking import NamedDevice


class AutomaticLocking(NamedDevice):
    """A base class that gives a device `lock_mapped` and `unlock_unmapped`."""

    # The module pinning.locking.mapped, which sets it: this interface does not depend on the implementation.
    _locks_mapped: ClassVar[Any]

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
        return self._locks_mapped.lock_mapped(buffer, size, device=self)  # type: ignore[no-any-return]

    def unlock_unmapped(self, buffer: object) -> None:
        """Undo one `lock_mapped` of a buffer with this address, if it locked anything.

        Parameters
        ----------
        buffer : object
            As for `lock_mapped`.
        """
        self._locks_mapped.unlock_unmapped(buffer, device=self)

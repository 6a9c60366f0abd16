# SPDX-License-Identifier: Apache-2.0
"""Where objects keep their bytes, as they tell C: by the buffer protocol, or by DLPack's exchange API."""

def exported(buffer: object) -> tuple[int, int, bool, object, bool]:
    """The bytes of an object with the buffer protocol: address of the lowest, size, read only, owner, contiguous.

    As long as the owner is referenced the object can be neither resized nor closed. The size may be 0.

    Raises
    ------
    TypeError
        It has no buffer protocol.
    ValueError, BufferError
        It gives no access.
    """

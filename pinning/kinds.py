# SPDX-License-Identifier: Apache-2.0
"""The kinds of memory that a device can allocate."""

from enum import Enum


class MemoryKind(Enum):
    """Who can reach an allocation, and where it lives."""

    HOST = "host"  #: pinned host memory, which devices reach over the bus
    DEVICE = "device"  #: memory of one device
    SHARED = "shared"  #: moves between host and devices as it is used

# SPDX-License-Identifier: Apache-2.0
"""What the operating system says: NUMA nodes, the PCI bus, room for memory and pressure on it, pages brought in."""

# SPDX-License-Identifier: Apache-2.0
"""What the operating system says: NUMA nodes, room for memory and pressure on it, pages brought in."""

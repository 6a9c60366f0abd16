# SPDX-License-Identifier: Apache-2.0
"""The operating system's side: NUMA nodes, the PCI bus, memory limits, memory pressure, mappings, populating pages."""

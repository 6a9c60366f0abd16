# SPDX-License-Identifier: Apache-2.0
"""The pinned map of a device: the Python wrapper of ``<pinning/pinned_map.hpp>``."""

# SPDX-License-Identifier: Apache-2.0
"""Devices and their maps, and locks of buffers in them."""

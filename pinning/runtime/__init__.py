# SPDX-License-Identifier: Apache-2.0
"""State of each process and each device; checks of arguments, and how error messages show them."""

# SPDX-License-Identifier: Apache-2.0
"""What each process and each device has for itself, and how arguments are checked and told."""

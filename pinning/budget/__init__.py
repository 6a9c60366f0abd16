# SPDX-License-Identifier: Apache-2.0
"""How much may be locked, and what stays registered without a lock."""

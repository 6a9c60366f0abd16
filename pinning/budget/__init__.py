# SPDX-License-Identifier: Apache-2.0
"""How much may be locked, and the registration cache: what stays registered beyond its last lock."""

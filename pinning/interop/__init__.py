# SPDX-License-Identifier: Apache-2.0
"""What memory an object is."""

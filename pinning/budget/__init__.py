# SPDX-License-Identifier: Apache-2.0
"""The limit on locked memory, and the registration cache: regions that stay registered after their last unlock."""

# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the benchmark programs, judges their figures, and writes them down."""

# SPDX-License-Identifier: Apache-2.0
"""The command line: ``pinning demo``, ``doctor``, ``bench``, ``run`` and ``top``."""

# SPDX-License-Identifier: Apache-2.0
"""Tests of what every device must do, for any installed plugin; they need pytest and hypothesis.

    pip install hypothesis pytest
    pytest --pyargs pinning.conformance --device mydevice:0

Tests of optional features that the device lacks are skipped; each skip names the feature: run with ``-rs`` to see it.
A device that cannot lock memory, for example on an older driver, is tested with ``--refuses``: it must report clearly
what is missing, and tests that need locked memory are skipped. With ``--faults``, a stand-in for the driver, each
driver call fails in turn: see `pinning.conformance.faults.Faults`. With ``--counted-as``, ``VmLck`` for mlock or
``VmPin`` for drivers that account for pins, the kernel confirms that memory is pinned; without it, no test checks this.

The tests lock their own memory only, 64 MiB at most, and leave nothing locked.
"""

import pytest

# The shared modules contain assertions too.
pytest.register_assert_rewrite(
    "pinning.conformance.bench", "pinning.conformance.faults", "pinning.conformance.processes"
)

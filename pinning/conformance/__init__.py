# SPDX-License-Identifier: Apache-2.0
"""What every device must do, as tests that run on any installed plugin; they need pytest and hypothesis.

    pip install 'pinning[conformance]'
    pytest --pyargs pinning.conformance --device mydevice:0

What is optional for a device, and absent, is skipped, and the skip says what it is: run with ``-rs`` to see them. A
device that lacks what it takes to lock memory, say on an older driver, is tested with ``--refuses``: then it must say
clearly what is missing, and what needs locked memory is skipped. With ``--faults``, a stand-in for the driver, each
call of the driver fails in turn: see `pinning.conformance.faults.Faults`. With ``--counted-as``, ``VmLck`` for mlock
or ``VmPin`` for drivers that account for their pins, the kernel confirms that memory is pinned; without, nothing does.

The tests lock their own memory only, 64 MiB at most, and leave nothing locked.
"""

import pytest

# What the tests share asserts too.
pytest.register_assert_rewrite(
    "pinning.conformance.bench", "pinning.conformance.faults", "pinning.conformance.processes"
)

# SPDX-License-Identifier: Apache-2.0
"""How long random machines run: for seconds in the suite, as long as is asked for by PINNING_MACHINE_STEPS."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

STEPS = 40  # of one example


def steps(usual: int) -> settings:
    """Settings of a machine that does so many steps in all, or as many as the environment says."""
    wanted = int(os.environ.get("PINNING_MACHINE_STEPS", usual))
    return settings(
        max_examples=max(wanted // STEPS, 1),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

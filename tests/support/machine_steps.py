# SPDX-License-Identifier: Apache-2.0
"""How long random state machines run: for seconds in the suite, or as long as PINNING_MACHINE_STEPS says."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

STEPS = 40  # of one example


def steps(usual: int) -> settings:
    """Settings of a machine that runs `usual` steps in all, or as many as the environment says."""
    wanted = int(os.environ.get("PINNING_MACHINE_STEPS", usual))
    return settings(
        max_examples=max(wanted // STEPS, 1),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

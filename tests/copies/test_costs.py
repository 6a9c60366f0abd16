# SPDX-License-Identifier: Apache-2.0
"""What the fields of `pinning.copies.costs` accept."""

from __future__ import annotations

import pytest

from pinning.copies import Costs
from pinning.errors import ArgumentError, InvalidRangeError


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("ring_bytes", "64 MiB", TypeError, "ring_bytes is '64 MiB'; it must be an integer, a number of bytes"),
        ("staging_bytes", 1.5, TypeError, "staging_bytes is 1.5"),
        ("huge_from", False, TypeError, "huge_from is False"),
        ("stage_to_host", None, TypeError, "stage_to_host is None"),
        ("threads", -1, InvalidRangeError, "threads is -1; it must lie between 0 and 1024, in threads"),
        ("threads_to_host", 1 << 20, InvalidRangeError, "threads_to_host is 1048576"),
        ("kernel_from_items", -1, InvalidRangeError, "in items"),
        ("chunk_bytes", 1 << 63, InvalidRangeError, "chunk_bytes is 9223372036854775808"),
        ("links", "all", ArgumentError, "links is 'all'"),
        ("links", 1, TypeError, "links is 1"),
        ("ring_byte", 1, AttributeError, "there is no cost 'ring_byte'; there are .*ring_bytes"),
    ],
)
def test_a_wrong_cost_is_refused_and_changes_nothing(
    name: str, value: object, error: type[Exception], says: str
) -> None:
    costs, before = Costs(), Costs()
    with pytest.raises(error, match=says):
        setattr(costs, name, value)
    assert costs == before


def test_costs_are_kept() -> None:
    costs = Costs(threads=4)
    costs.huge_from = 0
    costs.links = (name for name in ("cuda:0", "cuda:1"))
    assert (costs.threads, costs.huge_from, costs.links) == (4, 0, ("cuda:0", "cuda:1"))

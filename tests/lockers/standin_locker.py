# SPDX-License-Identifier: Apache-2.0
"""How the C interface opens a native device whose driver fails. The rules of its locks: `pinning.conformance`."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

import c_api
from standins.standin import StandIn


def test_opening_fails_and_works_later(vendor: Any, standin: StandIn) -> None:
    """The first vendor call fails, then the second, and so on; an opened device stays open."""
    for n in count(1):
        standin.configure(f"fail=*:{n}:{vendor.failure}")
        outcome = None
        try:
            c_api.Map(vendor.device)
        except c_api.StatusError as error:
            outcome = error
        calls = standin.calls()
        standin.configure()
        if n > len(calls):
            assert outcome is None
            break
        call = calls[n - 1].split()[0]
        if outcome is None:
            assert call in vendor.unheard
        else:
            assert outcome.status in ("PINNING_UNAVAILABLE", "PINNING_VENDOR_ERROR"), (call, outcome)
            assert vendor.named in outcome.text or call in vendor.unheard
    kind, _, _ = vendor.device.partition(":")
    with pytest.raises(c_api.StatusError, match=f"there is no {kind}:7") as refused:
        c_api.Map(f"{kind}:7")
    assert refused.value.status == "PINNING_UNAVAILABLE"

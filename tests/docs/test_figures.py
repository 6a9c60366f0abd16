# SPDX-License-Identifier: Apache-2.0
"""Figures that appear in several places agree."""

from __future__ import annotations

import re

import pytest

from folders import ROOT

README = (ROOT / "README.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
RESULTS = (ROOT / "benchmarks" / "results" / "2026-11-22-nvidia-h200.md").read_text()

# What it is, and a pattern for each place where it appears.
FIGURES = {
    "1 GiB to the GPU": [
        (README, r"ordinary memory to the GPU\*\* \| \*\*([\d.]+) GB/s"),
        (PERFORMANCE, r"pageable memory to the GPU \| ([\d.]+) GB/s"),
        (RESULTS, r"\| 1 GiB \| ([\d.]+) \("),
    ],
    "1 GiB back": [
        (README, r"\| copy it back \| ([\d.]+) GB/s"),
        (PERFORMANCE, r"\| 1 GiB back \| ([\d.]+) GB/s"),
        (RESULTS, r"\| 1 GiB \| [^|]*\| [^|]*\| ([\d.]+) \("),
    ],
    "locked": [(README, r"from locked memory ([\d.]+)"), (PERFORMANCE, r"\| the same, locked \| ([\d.]+)")],
    "blocks": [
        (README, r"blocks of 4 KiB \| ([\d.]+) GB/s"),
        (PERFORMANCE, r"blocks of 4 KiB to the GPU \| ([\d.]+)"),
        (RESULTS, r"\n\| 4 KiB \| ([\d.]+) \|"),
    ],
    "blocks by torch": [
        (README, r"a loop of torch [\d.]+'s `copy_`: ([\d.]+)"),
        (PERFORMANCE, r"a loop of torch's `copy_`: ([\d.]+)"),
        (RESULTS, r"\n\| 4 KiB \|.*\| ([\d.]+) / [\d.]+ \|\n"),
    ],
    "files": [(README, r"first use in a process \| ([\d.]+)"), (RESULTS, r"\| `pinning.load_file` \| ([\d.]+),")],
}


@pytest.mark.parametrize("what", FIGURES)
def test_figures_agree(what: str) -> None:
    found = []
    for text, pattern in FIGURES[what]:
        (figure,) = re.findall(pattern, text)[:1] or pytest.fail(f"{pattern} is nowhere")
        found.append(figure)
    exact = float(max(found, key=len))
    for figure in found:
        digits = len(figure.partition(".")[2])
        assert f"{exact:.{digits}f}" == figure, f"{what}: {found}"


def test_peers_have_their_versions() -> None:
    table = README[README.index("| on an NVIDIA H200 |") : README.index("    make demo")]
    named = re.findall(r"\b(torch|safetensors|UCX)\b(?! file)( \d+\.\d+)?", table)
    assert {name for name, _ in named} == {"torch", "safetensors", "UCX"}
    assert all(version for _, version in named), named

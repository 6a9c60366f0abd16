# SPDX-License-Identifier: Apache-2.0
"""The site is made without a warning."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import pinning
from folders import ROOT

DOCS = ROOT / "docs"


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    for needed in ("sphinx", "numpydoc", "myst_parser", "furo", "sphinx_copybutton"):
        if find_spec(needed) is None:
            pytest.skip("needs Sphinx: pip install 'pinning[docs]'")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "doctrees", DOCS, site]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (site / "reference" / "pinning.html").read_text()
    assert (inspect.getdoc(pinning.Event) or "nothing").splitlines()[0] in reference
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in site.glob("*.html")}

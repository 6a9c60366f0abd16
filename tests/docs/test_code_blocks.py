# SPDX-License-Identifier: Apache-2.0
"""The blocks of README and docs/ run as they are written; those in C++ and Cython are compiled."""

from __future__ import annotations

import re
import resource
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import pinning
from installed import ROOT, run, tool

USUAL_LIMIT = 8 << 20  # bytes of RLIMIT_MEMLOCK that are enough for every block
# Pages whose blocks other tests run: they need libraries that are not installed, or contain an incomplete class.
ELSEWHERE = {"deepspeed", "lmcache", "plugins", "vllm"}
AS_ONE = ("files", "tutorial")  # pages whose blocks form one program


def blocks(language: str) -> list[tuple[str, str]]:
    """The place (page and line) and the text of each block."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        for block in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            found.append((f"{page.stem}:{text.count(chr(10), 0, block.start()) + 1}", block[1]))
    return found


def page_of(block: tuple[str, str]) -> str:
    return block[0].partition(":")[0]


ALL = blocks("python")
PYTHON = [block for block in ALL if page_of(block) not in {*ELSEWHERE, *AS_ONE}]
PYTHON += [(page, "\n".join(block[1] for block in ALL if page_of(block) == page)) for page in AS_ONE]


@pytest.mark.parametrize("text", [text for _, text in PYTHON], ids=[place for place, _ in PYTHON])
def test_python(text: str, tmp_path: Path) -> None:
    try:
        run(sys.executable, "-P", "-W", "error", "-c", text, folder=tmp_path)
    except AssertionError as error:
        if "LockLimitError" in str(error) and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < USUAL_LIMIT:
            pytest.skip(f"needs to lock {USUAL_LIMIT} bytes")
        raise


def test_there_are_blocks() -> None:
    assert len(PYTHON) > 5
    pages = {page_of(block) for block in ALL}
    assert {"README", "arena", "arrays", "copies", "memory", *AS_ONE} <= pages
    assert len(blocks("cpp")) == len(blocks("cython")) == 1


def test_no_block_has_a_file_in_a_folder_of_all_users() -> None:
    """Another user may have a file of that name there."""
    for place, text in [*ALL, *blocks("cpp"), *blocks("cython")]:
        assert not re.search(r"""["'](/tmp|/var/tmp|/dev/shm)/""", text), place


def test_cpp(tmp_path: Path) -> None:
    ((_, text),) = blocks("cpp")
    (tmp_path / "example.cpp").write_text(text + "int main() { return !example(); }\n")
    folders = [f"-I{folder}" for folder in pinning.build.include_dirs()]
    compiler = tool("c++", "apt-get install g++")
    run(compiler, "-std=c++20", *folders, "example.cpp", "-pthread", "-o", "example", folder=tmp_path)
    run(tmp_path / "example", folder=tmp_path)


def test_cython(tmp_path: Path) -> None:
    if find_spec("Cython") is None:
        pytest.skip("needs cython: pip install cython")
    ((_, text),) = blocks("cython")
    (tmp_path / "example.pyx").write_text(text)
    run(sys.executable, "-m", "cython", "-3", "--cplus", "-I", ROOT, "example.pyx", folder=tmp_path)
    folders = [f"-I{folder}" for folder in pinning.build.include_dirs()]
    include = run(
        sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('include'))", folder=tmp_path
    ).strip()
    compiler = tool("c++", "apt-get install g++")
    run(compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", *folders, "example.cpp", folder=tmp_path)

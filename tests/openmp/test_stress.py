# SPDX-License-Identifier: Apache-2.0
"""Threads that map, move, unmap, free and lock at once, plain and under the sanitizers."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import SOURCES

from installed import tool

ROOT = Path(__file__).parents[2]
TOOL_SOURCES = [
    source
    for folder in ("tool", "tool/openmp")
    for source in sorted((ROOT / "native" / folder).glob("*.cpp"))
    if source.stem not in ("hooks", "llvm_entry", "ompt")
]
VARIANTS = {
    "plain": ["-O2"],
    "thread": ["-O1", "-g1", "-fsanitize=thread"],
    "address": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"],
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_transfer_crosses_a_lock_whatever_others_do(variant: str, tmp_path: Path) -> None:
    compiler = tool("g++", "apt-get install g++")
    flags = ["-std=c++20", "-pthread", "-Wall", "-Wextra", "-Werror", *VARIANTS[variant]]
    includes = [f"-I{ROOT / folder}" for folder in ("native/tool", "native/include", "pagetable/include")]
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() {}")
    if subprocess.run([compiler, *flags, str(empty), "-o", str(tmp_path / "empty")]).returncode:
        pytest.skip(f"{compiler} cannot build with {' '.join(VARIANTS[variant])}")
    # ThreadSanitizer aborts if the kernel places mappings more randomly than it expects.
    setarch = shutil.which("setarch")
    launcher = [setarch, platform.machine(), "-R"] if variant == "thread" and setarch else []
    if subprocess.run([*launcher, str(tmp_path / "empty")], capture_output=True).returncode:
        pytest.skip(f"a program built with {' '.join(VARIANTS[variant])} does not start here")
    program = tmp_path / "locks_stress"
    sources = [str(SOURCES / "locks_stress.cpp"), *map(str, TOOL_SOURCES)]
    subprocess.run([compiler, *flags, *includes, *sources, "-o", str(program)], check=True)
    done = subprocess.run([*launcher, str(program), "3"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "of locked memory" in done.stdout

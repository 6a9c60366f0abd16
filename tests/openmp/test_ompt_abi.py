# SPDX-License-Identifier: Apache-2.0
"""The tool's own declarations of OMPT are those of the header that comes with a runtime."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from installed import tool

OWN = Path(__file__).parents[2] / "native/tool/openmp/ompt.hpp"
NAME = r"\bompt_\w+"


def header() -> Path:
    found = sorted(Path("/usr/lib").glob("llvm-*/lib/clang/*/include/omp-tools.h"))
    if not found:
        pytest.skip("needs omp-tools.h: apt-get install libomp-19-dev")
    return found[-1]


def test_types_enumerators_and_callbacks_are_the_same(tmp_path: Path) -> None:
    """Compile each of the two headers in a program of its own that prints its facts, and compare the output."""
    compiler = tool("c++", "apt-get install g++")
    text = re.sub(r"//.*", "", OWN.read_text())
    enumerators = re.findall(r"^\s+(ompt_\w+) = ", text, re.MULTILINE)
    types = re.findall(r"^typedef .*?\b(ompt_\w+_t)\b", text, re.MULTILINE)
    callbacks = [name for name in re.findall(NAME, text) if re.fullmatch(r"ompt_callback_\w+_t", name)]
    assert len(enumerators) > 25
    assert len(set(callbacks)) == 4
    said = []
    for include in (OWN, header()):
        facts = [f'std::printf("{name} %lld\\n", (long long){name});' for name in enumerators]
        sizes = [name for name in types if name not in ("ompt_device_t",)]
        facts += [f'std::printf("{name} %zu\\n", sizeof({name}));' for name in sizes]
        facts += [f'std::printf("{name} %s\\n", shape<{name}>().c_str());' for name in sorted(set(callbacks))]
        source = tmp_path / f"{include.stem}.cpp"
        source.write_text(_PROGRAM.replace("HEADER", str(include)).replace("FACTS", "\n  ".join(facts)))
        program = tmp_path / include.stem
        subprocess.run([compiler, "-std=c++20", "-w", str(source), "-o", str(program)], check=True)
        said.append(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    assert said[0].splitlines() == said[1].splitlines()


# Enumerations and pointers to structures of the same name are passed alike; other differences of arguments show here.
_PROGRAM = """
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <typeinfo>
#include "HEADER"
template <class T> struct Args;
template <class R, class... A> struct Args<R (*)(A...)> {
  static std::string names() { return (std::string(typeid(R).name()) + ... + (" " + std::string(typeid(A).name()))); }
};
template <class T> std::string shape() { return Args<T>::names(); }
int main() {
  FACTS
}
"""

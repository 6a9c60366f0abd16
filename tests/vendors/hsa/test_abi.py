# SPDX-License-Identifier: Apache-2.0
"""What pinning_hsa.abi says of structures, constants and functions, against the vendor's headers, by a C++ compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pinning_hsa import abi
from standins import libhsa
from standins.standin import MissingError

CONSTANTS = {
    "SUCCESS": "HSA_STATUS_SUCCESS",
    "SYSTEM_INFO_VERSION_MAJOR": "HSA_SYSTEM_INFO_VERSION_MAJOR",
    "SYSTEM_INFO_VERSION_MINOR": "HSA_SYSTEM_INFO_VERSION_MINOR",
    "AGENT_INFO_NAME": "HSA_AGENT_INFO_NAME",
    "AMD_AGENT_INFO_PRODUCT_NAME": "HSA_AMD_AGENT_INFO_PRODUCT_NAME",
    "ACCESS_NEVER_ALLOWED": "HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED",
    "AGENT_POOL_INFO_ACCESS": "HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS",
}

PROGRAM = r"""
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <cstdio>
#include <type_traits>

template <class T> void type() {
    const char *kind = std::is_pointer_v<T> ? "pointer" : std::is_class_v<T> ? "struct" : "number";
    std::printf(" %s%zu", kind, sizeof(T));
}
template <class R, class... A> void function(const char *name, R (*)(A...)) {
    std::printf("function %s", name);
    type<R>();
    (type<A>(), ...);
    std::printf("\n");
}
int main() {
@
}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the headers say, a line for each thing."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if not compiler:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    try:
        folders = [f"-I{folder}" for folder in libhsa.includes()]
    except MissingError as missing:
        pytest.skip(str(missing))
    lines = [
        *(f'function("{name}", decltype(&{name})());' for name in abi.PROTOTYPES),
        *(f'std::printf("constant {name} %lu\\n", (unsigned long){name});' for name in CONSTANTS.values()),
        'std::printf("size hsa_agent_t %zu\\n", sizeof(hsa_agent_t));',
    ]
    folder = tmp_path_factory.mktemp("abi")
    source, program = folder / "abi.cpp", folder / "abi"
    source.write_text(PROGRAM.replace("@", "\n".join(lines)))
    subprocess.run([compiler, "-std=c++17", *folders, str(source), "-o", str(program)], check=True)
    return subprocess.run([program], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()


def described(kind: Any) -> str:
    """A ctypes type as the program above prints a C++ type."""
    if issubclass(kind, ctypes.Structure):
        return f"struct{ctypes.sizeof(kind)}"
    return f"{'pointer' if kind is ctypes.c_void_p else 'number'}{ctypes.sizeof(kind)}"


def about(header: list[str], subject: str) -> dict[str, list[str]]:
    lines = [line.split() for line in header if line.startswith(f"{subject} ")]
    return {name: rest for _, name, *rest in lines}


def test_functions_take_and_return_what_the_header_says(header: list[str]) -> None:
    ours = {name: ["number4", *map(described, arguments)] for name, arguments in abi.PROTOTYPES.items()}
    assert ours == about(header, "function")


def test_constants_are_those_of_the_header(header: list[str]) -> None:
    ours = {theirs: [str(getattr(abi, name))] for name, theirs in CONSTANTS.items()}
    assert ours == about(header, "constant")


def test_a_handle_has_the_headers_size(header: list[str]) -> None:
    assert about(header, "size") == {"hsa_agent_t": [str(ctypes.sizeof(abi.Handle))]}


def test_a_wrong_prototype_in_the_stand_in_does_not_compile(tmp_path: Path) -> None:
    try:
        libhsa.DRIVER.build(tmp_path)
    except MissingError as missing:
        pytest.skip(str(missing))
    right = (Path(libhsa.__file__).parent / libhsa.DRIVER.source).read_text()
    wrongs = {
        "another type": right.replace("hsa_amd_memory_unlock(void *host_ptr)", "hsa_amd_memory_unlock(long host_ptr)"),
        "another name": right.replace("hsa_amd_memory_unlock", "hsa_amd_memory_unlok"),
    }
    for what, wrong in wrongs.items():
        assert wrong != right
        path = tmp_path / "wrong.c"
        path.write_text(wrong)
        assert libhsa.DRIVER.compile(path, tmp_path / "wrong.so").returncode, what

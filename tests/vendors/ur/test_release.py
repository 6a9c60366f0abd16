# SPDX-License-Identifier: Apache-2.0
"""What pinning_ur.release says of constants, structures and functions, against the vendor's header and loader."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pinning_ur import release
from standins import libur
from standins.standin import MissingError

CONSTANTS = {
    "UR_RESULT_ERROR_INVALID_OPERATION": release.INVALID_OPERATION,
    "UR_RESULT_ERROR_UNSUPPORTED_FEATURE": release.UNSUPPORTED_FEATURE,
    "UR_ADAPTER_INFO_BACKEND": release.ADAPTER_INFO_BACKEND,
    "UR_PLATFORM_INFO_BACKEND": release.PLATFORM_INFO_BACKEND,
    "UR_DEVICE_INFO_PLATFORM": release.DEVICE_INFO_PLATFORM,
    "UR_DEVICE_INFO_NAME": release.DEVICE_INFO_NAME,
    "UR_DEVICE_INFO_USM_HOST_SUPPORT": release.DEVICE_INFO_USM_HOST,
    "UR_DEVICE_INFO_USM_DEVICE_SUPPORT": release.DEVICE_INFO_USM_DEVICE,
    "UR_DEVICE_INFO_USM_SINGLE_SHARED_SUPPORT": release.DEVICE_INFO_USM_SHARED,
    "UR_EXP_PEER_INFO_UR_PEER_ACCESS_SUPPORT": release.PEER_ACCESS,
    **{f"UR_BACKEND_{name.upper().replace(' ', '_')}": value for value, name in release.BACKENDS.items()},
}

PROGRAM = r"""
#include <unified-runtime/ur_api.h>
#include <unified-runtime/ur_print.h>
#include <cstdio>
#include <type_traits>

template <class T> void type() { std::printf(" %s%zu", std::is_pointer_v<T> ? "pointer" : "number", sizeof(T)); }
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
    """What the header says, a line for each thing."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if not compiler:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    try:
        folders = [f"-isystem{folder}" for folder in libur.includes()]
    except MissingError as missing:
        pytest.skip(str(missing))
    lines = [
        *(f'function("{name}", (decltype(&{name})) nullptr);' for name in release.PROTOTYPES),
        *(f'std::printf("constant {name} %lu\\n", (unsigned long){name});' for name in CONSTANTS),
    ]
    folder = tmp_path_factory.mktemp("release")
    source, program = folder / "release.cpp", folder / "release"
    source.write_text(PROGRAM.replace("@", "\n".join(lines)))
    subprocess.run([compiler, "-std=c++17", *folders, str(source), "-o", str(program)], check=True)
    return subprocess.run([program], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()


def described(kind: Any) -> str:
    """A ctypes type as the program above prints a C++ type."""
    return f"{'pointer' if kind in (ctypes.c_void_p, ctypes.c_char_p) else 'number'}{ctypes.sizeof(kind)}"


def about(header: list[str], subject: str) -> dict[str, list[str]]:
    lines = [line.split() for line in header if line.startswith(f"{subject} ")]
    return {name: rest for _, name, *rest in lines}


def test_functions_take_what_the_header_says(header: list[str]) -> None:
    ours = {name: ["number4", *map(described, arguments)] for name, arguments in release.PROTOTYPES.items()}
    assert ours == about(header, "function")


def test_constants_are_those_of_the_header(header: list[str]) -> None:
    assert {name: [str(value)] for name, value in CONSTANTS.items()} == about(header, "constant")


def test_a_wrong_prototype_in_the_stand_in_does_not_compile(tmp_path: Path) -> None:
    try:
        libur.DRIVER.build(tmp_path)
    except MissingError as missing:
        pytest.skip(str(missing))
    right = (Path(libur.__file__).parent / libur.DRIVER.source).read_text()
    wrongs = {
        "another type": right.replace(
            "urUSMFree(ur_context_handle_t hContext, void *pMem)", "urUSMFree(int hContext, void *pMem)"
        ),
        "another name": right.replace("UR_APICALL urUSMFree(", "UR_APICALL urUSMFre("),
    }
    for what, wrong in wrongs.items():
        assert wrong != right
        path = tmp_path / "wrong.c"
        path.write_text(wrong)
        assert libur.DRIVER.compile(path, tmp_path / "wrong.so").returncode, what

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
    "UR_RESULT_ERROR_UNSUPPORTED_FEATURE": release.UNSUPPORTED_FEATURE,
    "UR_RESULT_ERROR_OVERLAPPING_REGIONS": release.OVERLAPPING_REGIONS,
    "UR_ADAPTER_INFO_BACKEND": release.ADAPTER_INFO_BACKEND,
    "UR_DEVICE_TYPE_ALL": release.DEVICE_TYPE_ALL,
    "UR_DEVICE_INFO_NAME": release.DEVICE_INFO_NAME,
    "UR_USM_ALLOC_INFO_TYPE": release.ALLOC_INFO_TYPE,
    "UR_USM_ALLOC_INFO_BASE_PTR": release.ALLOC_INFO_BASE,
    "UR_USM_ALLOC_INFO_SIZE": release.ALLOC_INFO_SIZE,
    "UR_USM_ALLOC_INFO_DEVICE": release.ALLOC_INFO_DEVICE,
    "UR_DEVICE_INFO_USM_HOST_SUPPORT": release.DEVICE_INFO_USM_HOST,
    "UR_DEVICE_INFO_USM_DEVICE_SUPPORT": release.DEVICE_INFO_USM_DEVICE,
    "UR_DEVICE_INFO_USM_SINGLE_SHARED_SUPPORT": release.DEVICE_INFO_USM_SHARED,
    "UR_DEVICE_INFO_ENQUEUE_HOST_TASK_SUPPORT_EXP": release.DEVICE_INFO_HOST_TASK,
    "UR_RESULT_ERROR_INVALID_OPERATION": release.INVALID_OPERATION,
    "UR_RESULT_ERROR_INVALID_ENUMERATION": release.INVALID_ENUMERATION,
    "UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION": release.UNSUPPORTED_ENUMERATION,
    "UR_EXP_PEER_INFO_UR_PEER_ACCESS_SUPPORT": release.PEER_ACCESS,
    "UR_QUEUE_INFO_CONTEXT": release.QUEUE_INFO_CONTEXT,
    "UR_QUEUE_INFO_DEVICE": release.QUEUE_INFO_DEVICE,
    "UR_QUEUE_INFO_FLAGS": release.QUEUE_INFO_FLAGS,
    "UR_QUEUE_INFO_EMPTY": release.QUEUE_INFO_EMPTY,
    "UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE": release.QUEUE_OUT_OF_ORDER,
    "UR_STRUCTURE_TYPE_QUEUE_PROPERTIES": release.PROFILING_QUEUE.stype,
    "UR_QUEUE_FLAG_PROFILING_ENABLE": release.PROFILING_QUEUE.flags,
    "UR_EVENT_INFO_COMMAND_EXECUTION_STATUS": release.EVENT_INFO_STATUS,
    "UR_EVENT_STATUS_COMPLETE": release.EVENT_COMPLETE,
    "UR_EVENT_STATUS_RUNNING": release.EVENT_PENDING[0],
    "UR_EVENT_STATUS_QUEUED": release.EVENT_PENDING[-1],
    "UR_PROFILING_INFO_COMMAND_END": release.PROFILING_INFO_END,
    "UR_USM_TYPE_HOST": release.USM_HOST,
    "UR_STRUCTURE_TYPE_EXP_USM_HOST_ALLOC_REGISTER_PROPERTIES": release.READ_ONLY.stype,
    "UR_EXP_USM_HOST_ALLOC_REGISTER_FLAG_READ_ONLY": release.READ_ONLY.flags,
    **dict(zip(("UR_USM_TYPE_DEVICE", "UR_USM_TYPE_SHARED"), release.USM_OF_A_DEVICE, strict=True)),
    **{f"UR_BACKEND_{name.upper().replace(' ', '_')}": value for value, name in release.BACKENDS.items()},
}
STRUCTURES = ("ur_exp_usm_host_alloc_register_properties_t", "ur_queue_properties_t")
FIELDS = {"stype": "stype", "pNext": "next", "flags": "flags"}

PROGRAM = r"""
#include <unified-runtime/ur_api.h>
#include <unified-runtime/ur_print.h>
#include <cstddef>
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
        *(f'std::printf("{each} {name} %zu\\n", offsetof({each}, {name}));' for each in STRUCTURES for name in FIELDS),
        *(f'std::printf("size {each} %zu\\n", sizeof({each}));' for each in STRUCTURES),
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


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_structures_are_laid_out_as_the_header_says(header: list[str], structure: str) -> None:
    ours = {theirs: [str(getattr(release.Properties, name).offset)] for theirs, name in FIELDS.items()}
    assert ours == about(header, structure)
    assert about(header, "size")[structure] == [str(ctypes.sizeof(release.Properties))]


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

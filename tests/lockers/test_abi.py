# SPDX-License-Identifier: Apache-2.0
"""A compiler checks the lockers' declarations of vendors' functions, constants and structures against the headers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from installed import ROOT
from standins import libcuda, libhip, libhsa, libur
from standins.abi import checks_with
from standins.standin import Driver

PROGRAM = r"""
#include <cstddef>
#include <type_traits>
@INCLUDE@
#include "@VENDOR@_abi.hpp"

// Enumerations are ints to us, and handles that are pointers void*; structures have the same size.
template <class Theirs, class Ours>
constexpr bool alike = sizeof(Theirs) == sizeof(Ours) && std::is_pointer_v<Theirs> == std::is_pointer_v<Ours> &&
                       std::is_class_v<Theirs> == std::is_class_v<Ours>;
template <class Theirs, class Ours>
constexpr bool agree = false;
template <class R, class... A, class S, class... B>
constexpr bool agree<R (*)(A...), S (*)(B...)> = [] {
  if constexpr (sizeof...(A) != sizeof...(B)) return false;
  else return ((std::is_void_v<R> ? std::is_void_v<S> : alike<R, S>) && ... && alike<A, B>);
}();

#define CHECK(name, ...) \
  static_assert(agree<decltype(&::name), decltype(pinning::@VENDOR@::Functions::name.call)>, #name);
PINNING_@UPPER@_FUNCTIONS(CHECK)
#define CHECK_CONSTANT(name, value) static_assert(static_cast<long>(name) == (value), #name);  // perhaps a macro
PINNING_@UPPER@_CONSTANTS(CHECK_CONSTANT)
#define SAME_SIZE(theirs, ours) static_assert(sizeof(theirs) == sizeof(pinning::@VENDOR@::ours), #theirs);
#define SAME_FIELD(theirs, field, ours, name) \
  static_assert(offsetof(theirs, field) == offsetof(pinning::@VENDOR@::ours, name), #theirs "." #field);
@MORE@
int main() {}
"""
HSA = r"""
SAME_SIZE(hsa_agent_t, Handle) SAME_SIZE(hsa_amd_memory_pool_t, Handle) SAME_SIZE(hsa_signal_t, Handle)
SAME_SIZE(hsa_amd_pointer_info_t, PointerInfo) SAME_SIZE(hsa_pitched_ptr_t, PitchedPointer) SAME_SIZE(hsa_dim3_t, Dim3)
#define CHECK_FIELD(name)                                     \
  SAME_FIELD(hsa_amd_pointer_info_t, name, PointerInfo, name) \
  SAME_SIZE(hsa_amd_pointer_info_t::name, PointerInfo::name)
CHECK_FIELD(size) CHECK_FIELD(type) CHECK_FIELD(agentBaseAddress) CHECK_FIELD(hostBaseAddress)
CHECK_FIELD(sizeInBytes) CHECK_FIELD(userData) CHECK_FIELD(agentOwner) CHECK_FIELD(global_flags)
#define CHECK_PITCHED(name) SAME_FIELD(hsa_pitched_ptr_t, name, PitchedPointer, name)
CHECK_PITCHED(base) CHECK_PITCHED(pitch) CHECK_PITCHED(slice)
SAME_FIELD(hsa_dim3_t, y, Dim3, y) SAME_FIELD(hsa_dim3_t, z, Dim3, z)
"""
# The exported names carry a version, which must be the one that the header maps the plain names to.
CUDA = r"""
SAME_SIZE(CUDA_MEMCPY2D, Rows)
#define CHECK_FIELD(name) SAME_FIELD(CUDA_MEMCPY2D, name, Rows, name)
CHECK_FIELD(srcXInBytes) CHECK_FIELD(srcMemoryType) CHECK_FIELD(srcDevice) CHECK_FIELD(srcPitch)
CHECK_FIELD(dstXInBytes) CHECK_FIELD(dstMemoryType) CHECK_FIELD(dstDevice) CHECK_FIELD(dstPitch)
CHECK_FIELD(WidthInBytes) CHECK_FIELD(Height)
SAME_SIZE(CUstreamBatchMemOpParams, WordOperation)
#define CHECK_WORD(theirs, name) SAME_FIELD(CUstreamBatchMemOpParams, theirs, WordOperation, name)
CHECK_WORD(operation, operation)
CHECK_WORD(waitValue.address, address) CHECK_WORD(waitValue.value, value) CHECK_WORD(waitValue.flags, flags)
CHECK_WORD(writeValue.address, address) CHECK_WORD(writeValue.value, value) CHECK_WORD(writeValue.flags, flags)
#if CUDA_VERSION >= 12080
SAME_SIZE(CUmemcpyAttributes, CopyAttributes)
SAME_FIELD(CUmemcpyAttributes, flags, CopyAttributes, flags)
#endif
#if CUDA_VERSION >= 13000
CHECK(cuMemcpyBatchAsync_v2)
#endif
#define SAME(name, version) static_assert(&::name == &::version);
SAME(cuMemHostRegister, cuMemHostRegister_v2)
SAME(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)
SAME(cuCtxPushCurrent, cuCtxPushCurrent_v2)
SAME(cuCtxPopCurrent, cuCtxPopCurrent_v2)
SAME(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)
SAME(cuMemAlloc, cuMemAlloc_v2)
SAME(cuMemFree, cuMemFree_v2)
SAME(cuMemcpy2DAsync, cuMemcpy2DAsync_v2)
SAME(cuStreamDestroy, cuStreamDestroy_v2)
SAME(cuStreamWaitValue32, cuStreamWaitValue32_v2)
SAME(cuStreamWriteValue32, cuStreamWriteValue32_v2)
SAME(cuStreamBatchMemOp, cuStreamBatchMemOp_v2)
SAME(cuEventDestroy, cuEventDestroy_v2)
"""
# A loader without the recent functions is accepted, so they have a list of their own.
UR = r"""
PINNING_UR_RECENT_FUNCTIONS(CHECK)
SAME_SIZE(ur_queue_properties_t, Properties)
SAME_SIZE(ur_exp_usm_host_alloc_register_properties_t, Properties)
#define CHECK_FIELD(name)                                    \
  SAME_FIELD(ur_queue_properties_t, name, Properties, name) \
  SAME_FIELD(ur_exp_usm_host_alloc_register_properties_t, name, Properties, name)
CHECK_FIELD(stype) CHECK_FIELD(pNext) CHECK_FIELD(flags)
"""
VENDORS: dict[str, tuple[Driver, str, str]] = {
    "cuda": (libcuda.DRIVER, "#include <cuda.h>", CUDA),
    "hip": (libhip.DRIVER, "#define __HIP_DISABLE_CPP_FUNCTIONS__\n#include <hip/hip_runtime_api.h>", ""),
    "hsa": (libhsa.DRIVER, "#include <hsa/hsa.h>\n#include <hsa/hsa_ext_amd.h>", HSA),
    "ur": (libur.DRIVER, "#include <unified-runtime/ur_api.h>\n#include <unified-runtime/ur_print.h>", UR),
}


def compiled(vendor: str, folder: Path, header: str | None = None) -> subprocess.CompletedProcess[str]:
    driver, include, more = VENDORS[vendor]
    command = checks_with(driver)
    if header:
        (folder / f"{vendor}_abi.hpp").write_text(header)
    text = PROGRAM.replace("@INCLUDE@", include).replace("@MORE@", more)
    source = folder / "abi.cpp"
    source.write_text(text.replace("@VENDOR@", vendor).replace("@UPPER@", vendor.upper()))
    places = [f"-I{folder}", f"-I{ROOT / 'native' / 'vendors' / vendor}"]
    return subprocess.run([*command, "-w", *places, source], text=True, capture_output=True)


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_is_called_is_what_the_header_declares(vendor: str, tmp_path: Path) -> None:
    done = compiled(vendor, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("vendor", "right", "wrong"),
    [
        (
            "cuda",
            "cuMemHostRegister_v2, int, void*, std::size_t, unsigned",
            "cuMemHostRegister_v2, int, void*, int, unsigned",
        ),
        ("cuda", "RANGE_SIZE, 12", "RANGE_SIZE, 13"),
        ("hip", "hipHostUnregister, int, void*", "hipHostUnregister, int, void*, int"),
        ("hip", "hipHostRegisterMapped, 2", "hipHostRegisterMapped, 4"),
        ("hsa", "std::uint32_t global_flags;", "std::uint64_t global_flags;"),
        ("hsa", "hsa_amd_memory_unlock, int, void*", "hsa_amd_memory_unlock, int, Handle"),
        ("ur", "urQueueFinish, int, void*", "urQueueFinish, int, int"),
        ("ur", "UR_QUEUE_INFO_EMPTY, 6", "UR_QUEUE_INFO_EMPTY, 7"),
    ],
)
def test_a_wrong_declaration_is_noticed(vendor: str, right: str, wrong: str, tmp_path: Path) -> None:
    header = (ROOT / "native" / "vendors" / vendor / f"{vendor}_abi.hpp").read_text()
    assert right in header
    assert compiled(vendor, tmp_path, header.replace(right, wrong)).returncode != 0

# SPDX-License-Identifier: Apache-2.0
"""Compile move_parts.cu to move_parts_70.ptx and move_parts_90.ptx with NVRTC, which needs no GPU.

    pip install nvidia-cuda-nvrtc-cu12==12.1.105
    python native/vendors/cuda/kernels/generate.py

The PTX is for compute capability 7.0 and 9.0, in the version that drivers of CUDA 12.1 and later accept. Lines without
effect are left out.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
CAPABILITIES = 70, 90


def library() -> ctypes.CDLL:
    """Load NVRTC from the package nvidia-cuda-nvrtc-cu12."""
    spec = find_spec("nvidia.cuda_nvrtc")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("needs NVRTC: pip install nvidia-cuda-nvrtc-cu12==12.1.105")
    return ctypes.CDLL(str(Path(spec.submodule_search_locations[0]) / "lib" / "libnvrtc.so.12"))


def compiled(source: bytes, capability: int) -> str:
    """Compile a source to PTX.

    Raises
    ------
    RuntimeError
        The compiler's messages.
    """
    nvrtc = library()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"move_parts.cu", 0, None, None)
    options = (b"--gpu-architecture=compute_%d" % capability, b"--std=c++17")
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    text, size = ("Log", "LogSize") if failed else ("PTX", "PTXSize")
    length = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGetProgram{size}" if failed else f"nvrtcGet{size}")(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    getattr(nvrtc, f"nvrtcGetProgram{text}" if failed else f"nvrtcGet{text}")(program, buffer)
    if failed:
        raise RuntimeError(buffer.value.decode())
    return f"{lean(buffer.value.decode())}\n"


def lean(ptx: str) -> str:
    """Strip comments, blank lines, and the file's own constants, which the code contains as immediate values."""
    kept = (line for line in ptx.splitlines() if line.strip() and not line.lstrip().startswith("//"))
    return "\n".join(line for line in kept if not line.startswith(".global") or "_INTERNAL_" not in line)


if __name__ == "__main__":
    for each in CAPABILITIES:
        (HERE / f"move_parts_{each}.ptx").write_text(compiled((HERE / "move_parts.cu").read_bytes(), each))

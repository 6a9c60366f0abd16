# SPDX-License-Identifier: Apache-2.0
"""Every C++ exception is raised in Python; compiled here, because our own code does not throw all kinds."""

from __future__ import annotations

import ctypes
import shutil
import sysconfig
from pathlib import Path

import pytest

import pinning
from installed import run

THROWS = """
#include <pinning/python_errors.hpp>
#include <stdexcept>
extern "C" PyObject* raise(int which) {
  try {
    switch (which) {
      case 0: throw which;
      case 1: throw std::runtime_error("what it says");
      case 2: throw std::bad_alloc();
      default: throw pinning::InvalidRange("what it says");
    }
  } catch (...) {
    pinning::raise_in_python();
  }
  return nullptr;
}
"""


def test_every_exception_of_c_plus_plus(tmp_path: Path) -> None:
    cxx = shutil.which("c++") or pytest.skip("needs a C++ compiler: apt-get install g++")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("needs Python's headers: apt-get install python3-dev")
    source, library = tmp_path / "throws.cpp", tmp_path / "throws.so"
    source.write_text(THROWS)
    folders = [sysconfig.get_path("include"), *pinning.build.include_dirs()]
    options = ["-std=c++20", "-shared", "-fPIC", "-pthread", *(f"-I{folder}" for folder in folders)]
    run(cxx, *options, source, "-o", library, folder=tmp_path)
    throw = ctypes.PyDLL(str(library))["raise"]
    throw.restype = ctypes.py_object
    for which, kind, text in (
        (0, pinning.PinningError, "unknown kind"),
        (1, pinning.PinningError, "what it says"),
        (2, MemoryError, None),
        (3, pinning.InvalidRangeError, "what it says"),
    ):
        with pytest.raises(kind, match=text):
            throw(which)

# SPDX-License-Identifier: Apache-2.0
"""Importing this module fails in a sub-interpreter, with a clearer message than that of the native modules.

Native threads and drivers call back into the main interpreter: C code has no other.
"""

_REFUSED = (
    "pinning works in the main interpreter of a process alone, and this is a sub-interpreter; import it in the "
    "main one, or start a process"
)

try:
    import ctypes
except ImportError as error:  # before Python 3.13 ctypes itself refuses
    if "subinterpreters" in str(error):
        raise ImportError(_REFUSED) from None
    raise

_python = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose function objects are shared
_python.PyInterpreterState_Get.restype = ctypes.c_void_p
_python.PyInterpreterState_Main.restype = ctypes.c_void_p

if _python.PyInterpreterState_Get() != _python.PyInterpreterState_Main():
    raise ImportError(_REFUSED)

# SPDX-License-Identifier: Apache-2.0
"""A copy over two links whose peer is lost meanwhile: ``lost_peer.py WHEN WHAT DIRECTION WAITED PATH``.

Prints "right" or "failed". Unless it failed, the bytes are compared; then the queue copies again. The peer stays lost.
"""

from __future__ import annotations

import ctypes
import faulthandler
import sys
from contextlib import nullcontext, suppress

import numpy

import pinning

MIB = 1 << 20
STUCK = 300.0  # seconds


def main() -> None:
    when, what, direction, waited, path = sys.argv[1:]
    faulthandler.dump_traceback_later(STUCK, exit=True)
    source = numpy.random.default_rng(1).integers(0, 256, 64 * MIB, dtype=numpy.uint8)
    pinning.copies.costs.threads = max(2, pinning.copies.costs.threads)
    array = source.copy() if direction == "in" else numpy.zeros_like(source)
    queue, there = pinning.Queue("cuda:0"), pinning.alloc(source.nbytes, device="cuda:0")
    if direction == "out":
        pinning.copy(there, source, queue=queue)
    if what == "file":
        source.tofile(path)
    queue.links = ["cuda:1"]
    with pinning.locked(array, device="cuda:0") if what == "locked" else nullcontext():
        ctypes.CDLL("libcuda.so.1").standin_configure(f"nvswitch;alone=1:{when}:719".encode())
        failed = False
        try:
            if what == "file":
                (pinning.copy_file if waited == "1" else pinning.copy_file_async)(there, path, queue=queue).wait()
            else:
                ends = (there, array) if direction == "in" else (array, there)
                (pinning.copy if waited == "1" else pinning.copy_async)(*ends, queue=queue).wait()
        except pinning.VendorError:
            failed = True
    queue.links = "own"
    if direction == "in":
        pinning.copy(array, there, queue=queue)
    assert failed or (array == source).all(), "wrong bytes"
    pinning.copy(there, source, queue=queue)  # the queue still works
    pinning.copy(array, there, queue=queue)
    assert (array == source).all(), "wrong bytes of the next copy"
    with suppress(pinning.VendorError):  # idle memory of the lost device cannot be freed
        pinning.copies.trim_staging()
    queue.close()
    there.free()
    print("failed" if failed else "right")


if __name__ == "__main__":
    main()

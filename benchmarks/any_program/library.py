# SPDX-License-Identifier: Apache-2.0
"""Copies of 1 GiB and 64 MiB of ordinary memory by one library, which knows nothing of pinning: "name GB/s" lines.

python library.py torch | cupy | numba | jax | cuda | pinning
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy

Copies = tuple[Callable[[], object], Callable[[], object]]


def of_torch(array: numpy.ndarray, back: numpy.ndarray) -> Copies:
    import torch

    host, target = torch.from_numpy(array), torch.from_numpy(back)
    device = host.to("cuda")
    return lambda: (host.to("cuda"), torch.cuda.synchronize()), lambda: target.copy_(device)


def of_cupy(array: numpy.ndarray, back: numpy.ndarray) -> Copies:
    import cupy

    device = cupy.empty(array.shape, array.dtype)
    wait = cupy.cuda.get_current_stream().synchronize
    return lambda: (device.set(array), wait()), lambda: (device.get(out=back), wait())


def of_numba(array: numpy.ndarray, back: numpy.ndarray) -> Copies:
    from numba import cuda

    device = cuda.device_array(array.shape, array.dtype)
    return lambda: (device.copy_to_device(array), cuda.synchronize()), lambda: device.copy_to_host(back)


def of_jax(array: numpy.ndarray, back: numpy.ndarray) -> Copies:
    import jax

    device = [jax.device_put(array).block_until_ready()]

    def put() -> None:
        device[0] = jax.device_put(array).block_until_ready()

    def get() -> None:
        numpy.copyto(back, numpy.asarray(device[0]))
        put()  # a new array, which has no copy on the host yet

    return put, get


def of_cuda(array: numpy.ndarray, back: numpy.ndarray) -> Copies:
    from cuda.bindings import runtime

    _, device = runtime.cudaMalloc(array.nbytes)
    to_device, to_host = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost

    def put() -> None:
        runtime.cudaMemcpy(device, array.ctypes.data, array.nbytes, to_device)
        runtime.cudaDeviceSynchronize()

    return put, lambda: runtime.cudaMemcpy(back.ctypes.data, device, array.nbytes, to_host)


def of_pinning(array: numpy.ndarray, back: numpy.ndarray) -> Copies:
    import pinning

    device = pinning.alloc(array.nbytes, device="cuda:0")
    return lambda: pinning.copy(device, array), lambda: pinning.copy(back, device)


def best(copy: Callable[[], object], turns: int) -> float:
    copy()
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        copy()
        times.append(time.perf_counter() - began)
    return min(times)


def main(library: str) -> None:
    for mib, turns in ((1024, 4), (64, 12)):
        array = numpy.arange(mib << 18, dtype=numpy.uint32)
        back = numpy.zeros_like(array)
        put, get = globals()[f"of_{library}"](array, back)
        print(f"{mib} MiB in {array.nbytes / best(put, turns) / 1e9:.1f}")
        print(f"{mib} MiB out {array.nbytes / best(get, turns) / 1e9:.1f}", flush=True)
        assert (back == array).all(), "different bytes"


if __name__ == "__main__":
    main(sys.argv[1])

# SPDX-License-Identifier: Apache-2.0
"""The kernel for a batch, by the GPU's shared memory and the parts' alignment; its multiprocessors, by their size.

Each case runs in its own process, because a context keeps its kernel. The stand-in copies as the kernel does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from own_process import run
from standins.libcuda import DRIVER

PROGRAM = """
import numpy
import pinning
size = {size}
count = (1 << 20) // size
memory = pinning.alloc(2 << 20, "host", device="cuda:0")
host = numpy.asarray(memory).view(numpy.uint32)[{shift}:][: 1 << 18]
host[:] = numpy.arange(1 << 18)
back = numpy.empty_like(host)
with (
    pinning.Queue("cuda:0") as queue,
    pinning.alloc(host.nbytes, device="cuda:0") as there,
):
    pinning.copy_blocks(there, range(count), host, range(count), size, queue=queue)
    pinning.copy(back, there, queue=queue)
print((back == host).all())
"""


@pytest.mark.parametrize(
    ("shared", "size", "shift", "blocks", "threads"),
    [
        (99, 16384, 0, 2, 1024),
        (163, 1024, 0, 8, 1024),
        (227, 16384, 0, 3, 256),
        (227, 4096, 0, 4, 256),
        (227, 1024, 0, 6, 256),
        (227, 1024, 4, 8, 1024),
        (227, 1024, 16, 8, 1024),
        (227, 1024, 32, 6, 256),
    ],
)
def test_the_kernel_of_a_gpu(
    standin_folder: Path, tmp_path: Path, shared: int, size: int, shift: int, blocks: int, threads: int
) -> None:
    log = tmp_path / "log"
    environment = DRIVER.environment(standin_folder, f"shared_kib={shared};log={log}")
    assert run(PROGRAM.format(size=size, shift=shift), environment) == "True\n"
    launches = [line.split()[1:3] for line in log.read_text().splitlines() if line.startswith("cuLaunchKernel")]
    assert launches == [[str(blocks), str(threads)]]

# SPDX-License-Identifier: Apache-2.0
"""A Dask pipeline from .npy files to the device: one worker reads and prepares the data, the other one has the device.
It receives the data into locked memory and copies it to the device from there.

Run it: ``python dask_pipeline.py [MIB]`` with `pip install distributed`
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy
from distributed import Client, LocalCluster

import pinning
import pinning.dask

BLOCKS = 8


def to_device(block: Any) -> Any:
    """The work on a block there; here: the sum of the bytes that came back, and whether the block was locked."""
    device = pinning.devices()[0]
    with pinning.alloc(block.nbytes, device=device) as there:
        copy = pinning.copy_async(there, block)
        copy.wait()
        back = numpy.empty_like(block)
        pinning.copy(back, there)
    return numpy.array([[back.sum(), pinning.is_locked(block, device=device)]])


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    columns = 1 << 10
    rows = (mib << 20) // BLOCKS // columns // 8
    dask.config.set({"distributed.comm.compression": None})
    with tempfile.TemporaryDirectory() as name:
        stack = Path(name) / "samples"  # a folder of .npy files, as `dask.array.to_npy_stack` leaves it
        samples = dask.array.arange(BLOCKS * rows * columns, chunks=rows * columns).reshape(-1, columns)
        dask.array.to_npy_stack(stack, samples.astype("f8").rechunk((rows, columns)))
        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1", local_directory=name
        )
        with cluster, Client(cluster) as client:
            client.register_plugin(pinning.dask.LockedFrames(2 * mib << 20, pinning.devices()[0].name))
            reads, has_device = sorted(client.scheduler_info(n_workers=-1)["workers"])
            end = time.monotonic() + 120
            while locked_bytes(client) < 4 * mib << 20 and time.monotonic() < end:
                time.sleep(0.05)  # what the dashboard shows comes with the workers' next heartbeat

            with dask.annotate(workers=[reads]):
                prepared = dask.array.from_npy_stack(stack, mmap_mode="r").map_blocks(lambda block: block + 1)
            with dask.annotate(workers=[has_device]):
                found = prepared.map_blocks(to_device, chunks=(1, 2), dtype="f8")
            # Without optimization: fusing steps of two workers would put them on one.
            table = found.compute(optimize_graph=False)
            count = BLOCKS * rows * columns
            assert table[:, 0].sum() == count * (count + 1) / 2, "not the sum of what was in the files"
            print(f"{len(table)} blocks of {mib / BLOCKS:g} MiB to {pinning.devices()[0].name}: their sum is right")
            print(f"{int(table[:, 1].sum())} of them had come to locked memory")
            print(f"{locked_bytes(client) / 2**20:.0f} MiB are locked by both workers, as the dashboard shows")


def locked_bytes(client: Client) -> int:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return sum(each["metrics"].get("locked_bytes", 0) for each in workers)


if __name__ == "__main__":
    main()

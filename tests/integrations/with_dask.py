# SPDX-License-Identifier: Apache-2.0
"""A Dask cluster of two processes whose workers receive into locked memory, on the host; its argument is a folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from importlib.util import find_spec
from typing import Any

import dask
import dask.array
import numpy
from distributed import Client, LocalCluster, get_worker

import pinning
import pinning.dask
from pinning.conformance.faults import eventually

DEVICE, MIB = "host:0", 1 << 20


def make(number: int) -> Any:
    return numpy.full(MIB // 2, number, numpy.uint8)


def use(array: Any) -> tuple[int, bool]:
    end = time.monotonic() + 60
    while pinning.regions(DEVICE) == [] and time.monotonic() < end:
        time.sleep(0.01)  # it is locked in the background
    return int(array.sum()), pinning.is_locked(array, device=DEVICE)


def lock_of_block(block: Any) -> Any:
    return numpy.array([pinning.is_locked(block, device=DEVICE)])


def locks_of_partition(partition: Any) -> Any:
    found = {name: [pinning.is_locked(column.to_numpy(), device=DEVICE)] for name, column in partition.items()}
    return type(partition)(found)


def keep(number: int, array: Any) -> bool:
    kept = getattr(get_worker(), "kept", {})
    get_worker().kept = {**kept, number: array}
    return use(array) == (number * MIB // 2, True)


def forget() -> None:
    del get_worker().kept


def process() -> int:
    return os.getpid()


def workers_of(client: Client) -> dict[str, Any]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])


def main(folder: str) -> None:
    dask.config.set({"distributed.comm.compression": None})
    cluster = LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        memory_limit=0,
        local_directory=folder,
        silence_logs=50,
    )
    with cluster, Client(cluster) as client:
        plugin = pinning.dask.LockedFrames(4 * MIB, DEVICE)
        client.register_plugin(plugin)

        def receive(number: int, task: Any, *more: Any) -> Any:
            """The result of a task on one worker, given an array from another."""
            there, here = sorted(workers_of(client))
            array = client.submit(make, number, workers=[there], pure=False)
            return client.submit(task, *more, array, workers=[here], pure=False).result(timeout=120)

        # More in all than the arena has: its memory is reused.
        for number in range(12):
            assert receive(number, use) == (number * MIB // 2, True), number
        workers = partial(workers_of, client)
        assert eventually(lambda: all(each["metrics"].get("locked_bytes") == 4 * MIB for each in workers().values()))

        # Blocks and partitions of collections arrive in locked memory too.
        there, here = sorted(workers_of(client))
        array = dask.array.arange(MIB // 8, chunks=MIB // 32).persist(workers=[there])  # of int64
        assert eventually(lambda: array.map_blocks(lock_of_block, dtype="?").compute(workers=[here]).all())
        if find_spec("pandas") is None or find_spec("pyarrow") is None:
            print("dask: no dask.dataframe, without pandas and pyarrow")
        else:
            import pandas
            from dask import dataframe

            columns = {name: numpy.arange(MIB // 16, dtype=kind) for name, kind in (("a", "f8"), ("b", "i8"))}
            frame = dataframe.from_pandas(pandas.DataFrame(columns), npartitions=2).persist(workers=[there])
            found = frame.map_partitions(locks_of_partition, meta={"a": "?", "b": "?"})
            assert eventually(lambda: found.compute(workers=[here]).all(axis=None))

        # Arrays that are kept are not overwritten, and those that find no room are correct.
        fast = [receive(number, keep, number) for number in range(10)]
        assert 4 <= sum(fast) <= 8 and fast[:4] == [True] * 4, fast
        _, here = sorted(workers_of(client))
        assert client.submit(forget, workers=[here], pure=False).result(timeout=120) is None
        assert eventually(lambda: receive(3, use) == (3 * MIB // 2, True))

        # A worker that is killed is replaced by another, with an arena of its own.
        before = set(workers_of(client))
        os.kill(client.submit(process, workers=[here], pure=False).result(timeout=120), signal.SIGKILL)
        assert eventually(lambda: len(workers_of(client)) == 2 and set(workers_of(client)) != before)
        assert eventually(lambda: receive(5, use) == (5 * MIB // 2, True))

        # Without the plugin, or if the arena is refused, Dask works as usual.
        client.unregister_worker_plugin("pinning")
        assert receive(6, use_unlocked) == (6 * MIB // 2, False)
        client.register_plugin(pinning.dask.LockedFrames(1 << 50, DEVICE))
        assert receive(7, use_unlocked) == (7 * MIB // 2, False)
    print("dask: all right")


def use_unlocked(array: Any) -> tuple[int, bool]:
    return int(array.sum()), pinning.is_locked(array, device=DEVICE)


if __name__ == "__main__":
    main(sys.argv[1])

# SPDX-License-Identifier: Apache-2.0
"""Ray inference workers that share one set of weights: the object store has it once, and each worker streams it from
there to its device, at the locked rate.

Run it: ``python ray_weights.py [MIB]`` with `pip install ray`
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import numpy
import ray

import pinning

LAYERS, WORKERS = 4, 2


def lock_objects() -> None:
    """The one line, in a function that names the device: by default, it is for workers that have GPUs from Ray."""
    import pinning.ray

    pinning.ray.setup(pinning.devices()[0])


@ray.remote(num_cpus=0)
class Server:
    def __init__(self, weights: list[Any]) -> None:
        self.layers = ray.get(weights)  # views in the store: no worker has a copy
        self.queue = pinning.Queue(pinning.devices()[0])

    def answer(self, question: Any) -> tuple[Any, str, int]:
        """The output of the layers, the path of the weights to the device, and the bytes locked in this process."""
        device, size = self.queue.device, self.layers[0].nbytes
        there, _ = self.queue.alloc(size)  # room for one layer
        for layer in self.layers:
            copy = pinning.copy_async(there, layer, queue=self.queue)
            question = layer @ question  # on a GPU, a kernel would do this with `there`
        self.queue.free(there)
        self.queue.synchronize()
        return question, copy.path, sum(region.size for region in pinning.regions(device))


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    side = int((mib * (1 << 20) / LAYERS / 4) ** 0.5)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # its sockets' paths must be short
        ray.init(
            num_cpus=1,
            object_store_memory=max(80, 3 * mib) << 20,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
            runtime_env={"worker_process_setup_hook": lock_objects},
        )
        try:
            weights = [ray.put(numpy.full((side, side), 1 / side, numpy.float32)) for _ in range(LAYERS)]
            servers = [Server.remote(weights) for _ in range(WORKERS)]
            end = time.monotonic() + 120
            while True:
                answers = ray.get([each.answer.remote(numpy.arange(side, dtype="f4")) for each in servers])
                if all(locked >= LAYERS * side * side * 4 for _, _, locked in answers) or time.monotonic() > end:
                    break  # they are locked in the background
            for number, (answer, path, locked) in enumerate(answers):
                assert numpy.allclose(answer, (side - 1) / 2, rtol=1e-3), "not what the weights make of it"
                print(f"worker {number}: {locked / 2**20:.0f} MiB locked, its weights' copies are {path}")
            print(f"{WORKERS} workers, {mib} MiB of weights, in memory once")
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""PyTorch: tensors and modules locked in place, moved at full speed, or streamed through a GPU that is too small.

    with pinning.torch.pin(model):
        model.to("cuda", non_blocking=True)     # torch's own copies, at the locked rate

- ``storages``: which storages a tensor, module, state dict or optimizer has;
- ``pins``: `pin` and `unpin`, these storages locked in place;
- ``move``: `to`, everything of a module or collection in one batch;
- ``parking``: `park`, modules that leave the GPU for a while;
- ``sleeping``: `sleepable`, `sleep` and `wake`, memory that leaves the GPU and comes back to the same addresses;
- ``offload``: `offload`, a module whose weights stay in the host and stream through the GPU;
- ``host``: `pin_memory`, locked copies of exactly the size needed;
- ``collate`` and ``slots``: `Collate`, batches of a DataLoader in locked memory that its workers write to.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"pinning.torch needs PyTorch 2.1 or newer ({error}); pip install torch") from error

from pinning.sleeping import Parked
from pinning.torch.collate import Collate
from pinning.torch.host import pin_memory
from pinning.torch.move import to
from pinning.torch.offload import Offload, offload
from pinning.torch.parking import park
from pinning.torch.pins import Pin, pin, unpin
from pinning.torch.sleeping import sleep, sleep_async, sleepable, wake, wake_async

__all__ = [
    "Collate",
    "Offload",
    "Parked",
    "Pin",
    "offload",
    "park",
    "pin",
    "pin_memory",
    "sleep",
    "sleep_async",
    "sleepable",
    "to",
    "unpin",
    "wake",
    "wake_async",
]

# SPDX-License-Identifier: Apache-2.0
"""Files to devices and back, through pinned blocks that threads read into and write from.

- ``copy.py``: `copy_file`, `copy_file_async`; ``file_work``: open files, and the work that their copies enqueue;
- ``load.py``: `load_file`; ``slices.py``: `shard`, and the bytes of slices; ``save.py``: `save_file`;
- ``replacement.py``: new files that replace others; ``order.py``: the order of saves, loads and copies of one file;
- ``snapshot.py``: copies in locked memory, from which `save_file_async` writes the file;
- ``header.py``: headers of safetensors files; ``shards.py``: the files that a path refers to;
- ``frameworks.py``: the libraries whose arrays are loaded; ``of_torch.py``, ``of_cupy.py``: two of them.
"""

from pinning.files.copy import copy_file, copy_file_async
from pinning.files.file_work import FileCopy
from pinning.files.load import load_file
from pinning.files.save import save_file, save_file_async
from pinning.files.slices import shard
from pinning.files.snapshot import trim_snapshots

__all__ = [
    "FileCopy",
    "copy_file",
    "copy_file_async",
    "load_file",
    "save_file",
    "save_file_async",
    "shard",
    "trim_snapshots",
]

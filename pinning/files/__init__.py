# SPDX-License-Identifier: Apache-2.0
"""Files to devices and back, through pinned blocks that threads read into and write from.

- ``copy.py``: `copy_file`, `copy_file_async`; ``file_work``: open files, and what their copies put into queues.
"""

from pinning.files.copy import copy_file, copy_file_async
from pinning.files.file_work import FileCopy

__all__ = ["FileCopy", "copy_file", "copy_file_async"]

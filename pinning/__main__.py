# SPDX-License-Identifier: Apache-2.0
"""``python -m pinning`` is ``pinning``."""

from pinning_command import main

if __name__ == "__main__":
    main()

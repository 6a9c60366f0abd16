# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with the Python packages around a driver that works."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from pinning.errors import PluginUnavailableError
from pinning.plugin import Library


def version_warnings(library: Callable[[], Library]) -> list[str]:
    """That the bindings are made for a newer driver, if so."""
    try:
        driver, bindings = library().version, version("cuda-bindings")
    except (PluginUnavailableError, PackageNotFoundError):  # `CudaPlugin.device_count` tells of these
        return []
    if int(bindings.split(".")[0]) <= int(driver.split(".")[0]):
        return []
    return [
        f"cuda-bindings {bindings} is newer than the driver's CUDA {driver}, which may lack functions: update the "
        f"driver, or pip install 'cuda-bindings=={driver.split('.')[0]}.*'"
    ]

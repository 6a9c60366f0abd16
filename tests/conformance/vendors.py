# SPDX-License-Identifier: Apache-2.0
"""The vendors whose plugins are tested on stand-ins, and how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from standins import libcuda, libhip, libhost, libhsa, libur
from standins.standin import Driver


@dataclass(frozen=True)
class Vendor:
    """A plugin and its stand-in driver.

    Attributes
    ----------
    driver : Driver
        Built and loaded in a process of its own.
    configuration : str
        The configuration of the stand-in, when the process starts.
    prototype : tuple of str
        The prototype of a function that the driver defines, and one that differs from the vendor's header.
    variants : sequence of str
        Other configurations, such as other releases of the driver, with which the suite runs too.
    refusing : str
        A configuration whose device locks no memory; empty if the vendor has none.
    """

    driver: Driver
    configuration: str
    prototype: tuple[str, str]
    variants: Sequence[str] = ()
    refusing: str = ""


VENDORS = {
    "host": Vendor(
        libhost.DRIVER,
        "",
        ("int mlock(const void *addr, size_t len)", "int mlock(void *addr, size_t len)"),
    ),
    "cuda": Vendor(
        libcuda.DRIVER,
        "devices=2",
        ("cuInit(unsigned int Flags)", "cuInit(int Flags)"),
        variants=["devices=1;no_read_only"],
    ),
    "hip": Vendor(
        libhip.DRIVER,
        "devices=3",
        ("hipHostUnregister(void *hostPtr)", "hipHostUnregister(const void *hostPtr)"),
        variants=["devices=1;silent_duplicates"],
    ),
    "hsa": Vendor(
        libhsa.DRIVER,
        "gpus=2",
        ("hsa_amd_memory_unlock(void *host_ptr)", "hsa_amd_memory_unlock(const void *host_ptr)"),
        variants=["gpus=1;svm"],
    ),
    "ur": Vendor(
        libur.DRIVER,
        "devices=2",
        ("urUSMFree(ur_context_handle_t hContext, void *pMem)", "urUSMFree(ur_context_handle_t hContext, int *pMem)"),
        variants=["devices=1;no_register"],
        refusing="no_register;no_import",
    ),
}

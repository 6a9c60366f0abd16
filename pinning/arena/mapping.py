# SPDX-License-Identifier: Apache-2.0
"""Where an arena's memory comes from: ordinary or huge pages, of this process alone or shared."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Literal

from pinning.arena.memory import Memory, Segment
from pinning.arena.names import FOLDER, open_segment
from pinning.budget.checks import check_memory
from pinning.errors import ArgumentError, LockLimitError, PinningError
from pinning.machine.populate import huge_page_mode
from pinning.machine.room import Room, check
from pinning.runtime.arguments import describe, is_one_of

HugePages = Literal["hugetlb", "try"] | bool | None

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE = 14, 15
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")


def map_memory(
    size: int,
    maximum: int,
    ours: int,
    *,
    name: str | None = None,
    shared: bool = False,
    create: bool | None = None,
    huge_pages: HugePages = None,
) -> Memory:
    """Map memory for `size` bytes, with addresses for `maximum`; this process will use `ours`. Raises as `Arena`."""
    if not (huge_pages is None or isinstance(huge_pages, bool) or is_one_of(huge_pages, "hugetlb", "try")):
        raise ArgumentError(f"huge_pages is {describe(huge_pages)}; it may be None, a bool, 'hugetlb' or 'try'")
    if huge_pages in ("hugetlb", "try"):
        try:
            return _of_hugetlb(size, maximum, name, shared)
        except PinningError:
            if huge_pages == "hugetlb":
                raise
    if huge_pages is True:
        _require_huge_pages(name, shared)
    advice = _MADV_NOHUGEPAGE if huge_pages is False else _MADV_HUGEPAGE
    check_memory(ours if name is None else 0)
    segment = None
    if name is not None:
        segment = open_segment(name, size, create)
        check_memory(max(ours - segment.present, 0))
    elif shared:
        segment = Segment.unnamed(maximum)
    aligned = HUGE_PAGE if maximum >= HUGE_PAGE else PAGE
    return _mapped(size, maximum, PAGE, aligned, segment, advice if maximum >= HUGE_PAGE else None)


def up(size: int, page: int) -> int:
    """`size` rounded up to whole pages."""
    return -(-size // page) * page


def _of_hugetlb(size: int, maximum: int, name: str | None, shared: bool) -> Memory:
    if name is not None:
        raise PinningError(
            f"an arena with a name is a file of {FOLDER}, which has no pages of hugetlb: use huge_pages=True, or leave "
            "out the name"
        )
    needed = up(size, HUGE_PAGE)
    remedy = f"echo {needed // HUGE_PAGE} | sudo tee /proc/sys/vm/nr_hugepages, or huge_pages='try'"
    check(needed, Room("the pool of huge pages (hugetlb)", *_hugetlb_pool(), remedy))
    segment = Segment.unnamed(up(maximum, HUGE_PAGE), True) if shared else None
    return _mapped(size, maximum, HUGE_PAGE, HUGE_PAGE, segment, None)


def _hugetlb_pool(file: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Bytes in the pool, and bytes free there."""
    figures = dict(line.split(":", 1) for line in file.read_text("utf-8").splitlines())
    if figures.get("Hugepagesize", "").split()[:1] != ["2048"]:
        return 0, 0
    pages = [int(figures[f"HugePages_{kind}"]) for kind in ("Total", "Free", "Rsvd")]
    return pages[0] * HUGE_PAGE, (pages[1] - pages[2]) * HUGE_PAGE


def _require_huge_pages(name: str | None, shared: bool) -> None:
    if name is not None:
        mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
        options = [option for mount in mounts if mount[1] == str(FOLDER) for option in mount[3].split(",")]
        had = bool({"huge=always", "huge=advise", "huge=within_size"}.intersection(options))
        way = f"sudo mount -o remount,huge=advise {FOLDER}"
    else:
        setting = _SETTINGS / ("shmem_enabled" if shared else "enabled")
        had = huge_page_mode(setting) not in ("never", "deny", "")
        way = f"echo {'advise' if shared else 'madvise'} | sudo tee {setting}"
    if not had:
        raise PinningError(
            f"huge_pages is True, but this system provides no huge pages for such memory: {way}, or None"
        )


def _mapped(size: int, maximum: int, page: int, aligned: int, segment: Segment | None, advice: int | None) -> Memory:
    try:
        memory = Memory(up(maximum, page), aligned, segment, page, -1 if advice is None else advice)
        memory.extend(up(size, page))
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EAGAIN):
            raise PinningError(f"{size} bytes cannot be mapped: {error}") from error
        raise LockLimitError(
            f"the kernel refuses {size} bytes of memory, or addresses for {maximum}: see `ulimit -v` and "
            "/proc/sys/vm/overcommit_memory, or ask for less"
        ) from error
    return memory

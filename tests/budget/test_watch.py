# SPDX-License-Identifier: Apache-2.0
"""Memory that is unmapped, moved, replaced or discarded while it is locked."""

from __future__ import annotations

import json
import mmap
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

import pinning
from child_process import run_in_child
from fake_device import WAIT, Background, FakeDevice
from folders import SUPPORT
from leaving import (
    LARGE,
    SIZE,
    WAYS,
    libc,
    mapped_anew,
    pages,
    replaced,
    stale_after,
    unmap_the_rest,
    unmapped,
    unmapped_in_part,
)
from own_process import python
from pinning.map.pinned_map import watch_problem
from pinning_command.run import library

CYCLES = int(os.environ.get("PINNING_WATCH_CYCLES", "300"))

watched = pytest.mark.skipif(
    watch_problem() is not None, reason=f"the kernel does not tell of memory that leaves: {watch_problem()}"
)


filters = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="the filter knows the system calls of x86-64 and AArch64"
)
# The device does not mlock, like a GPU: the kernel refuses some of these ways for memory that is mlocked.
ways = pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)


@watched
@ways
def test_the_region_goes_at_once(device: FakeDevice, leave: Callable[[int], None]) -> None:
    ptr = pages()
    lock, part = pinning.lock((ptr, SIZE), device=device), pinning.lock((ptr + 100, 1), device=device)
    other = pinning.lock(numpy.ones(100_000, "u1"), device=device)
    leave(ptr)
    assert not lock.held
    assert not part.held
    assert not pinning.is_locked((ptr, SIZE), device=device)
    assert other.held
    lock.unlock()
    part.unlock()
    with pytest.raises(pinning.NotLockedError):
        pinning.unlock(ptr, device=device)
    assert pinning.regions(device) == [other.region]
    other.unlock()
    assert device.locked == {}


@watched
@ways
def test_a_new_lock_is_of_the_memory_that_is_there_now(device: FakeDevice, leave: Callable[[int], None]) -> None:
    for _ in range(100):  # until no other mapping takes the addresses first
        ptr = pages()
        old = pinning.lock((ptr, SIZE), device=device)
        leave(ptr)
        if mapped_anew(ptr, leave):
            break
        old.unlock()
        unmap_the_rest(ptr, leave)
    else:
        pytest.skip("needs the place of memory that has left, and other mappings take it each time")
    with pinning.lock((ptr, SIZE), device=device) as lock:
        assert lock.region is not None
        assert lock.region.references == 1
        old.unlock()
        assert lock.held
    assert device.locked == {}
    unmapped(ptr)


def refused_while_it_leaves(device: FakeDevice, ptr: int, act: Callable[[], object]) -> None:
    """Replace memory while the device unlocks it for `act`, and have the device refuse that."""
    with device.stopping("data_unlock", ptr) as gate:
        acting = Background(act)
        assert gate.reached.wait(WAIT)
        replaced(ptr)
        gate.open(pinning.VendorError("fakeUnregister", 1, "FAKE_FAILURE"))
        with pytest.raises(pinning.VendorError):
            acting.result()


@watched
def test_an_unlock_that_the_vendor_refuses_while_the_memory_leaves_is_tried_again(device: FakeDevice) -> None:
    ptr = pages()
    old = pinning.lock((ptr, SIZE), device=device)
    refused_while_it_leaves(device, ptr, old.unlock)
    with pinning.lock((ptr, SIZE), device=device) as lock:
        assert not old.held
        assert lock.held
    assert device.locked == {}
    unmapped(ptr)


@watched
def test_so_is_the_undoing_of_a_refused_lock(device: FakeDevice) -> None:
    ptr = pages()
    device.fail(pinning.VendorError("fakeRegister", 1, "FAKE_FAILURE"), calls_before=1)
    refused_while_it_leaves(device, ptr, lambda: pinning.lock((ptr, SIZE), device=device, piece=mmap.PAGESIZE))
    with pinning.lock((ptr, SIZE), device=device) as lock:
        assert lock.held
    assert device.locked == {}
    unmapped(ptr)


@watched
def test_what_a_handler_of_a_signal_raises_while_old_memory_is_unlocked_reaches_the_caller(device: FakeDevice) -> None:
    ptr = pages()
    old = pinning.lock((ptr, SIZE), device=device)
    replaced(ptr)
    device.fail(SystemExit(3))
    with pytest.raises(SystemExit):
        for _ in range(100):
            pinning.lock((ptr, SIZE), device=device).unlock()
    assert not old.held
    assert device.locked == {}
    unmapped(ptr)


@watched
def test_locks_that_have_ended_take_no_room_in_the_record_of_what_is_watched(device: FakeDevice) -> None:
    ptr = pages()
    for _ in range(20_000):  # more than the record may have
        pinning.lock((ptr, SIZE), device=device).unlock()
    other = pages()
    lock = pinning.lock((other, SIZE), device=device)
    unmapped(other)
    assert not lock.held
    lock.unlock()
    unmapped(ptr)


@watched
def test_shared_memory_blocks_of_malloc_and_owners_that_discard(device: FakeDevice) -> None:
    file, owner = os.memfd_create("pages"), mmap.mmap(-1, SIZE)
    os.truncate(file, SIZE)
    owner[:] = b"1" * SIZE
    shared, block = pages(flags=mmap.MAP_SHARED, file=file), libc.malloc(LARGE)
    leaving: list[tuple[object, Callable[[], object]]] = [
        ((shared, SIZE), lambda: unmapped(shared)),
        ((block, 1000), lambda: libc.free(block)),
        (owner, lambda: owner.madvise(mmap.MADV_DONTNEED)),
    ]
    for buffer, leave in leaving:
        lock = pinning.lock(buffer, device=device)
        leave()
        assert not lock.held, buffer
    os.close(file)


@watched
def test_a_registration(device: FakeDevice) -> None:
    ptr = pages()
    on = pinning.pinned_map(device)
    on.register(ptr, SIZE, 1 << 40)
    unmapped(ptr)
    assert on.find(ptr) is None
    with pytest.raises(pinning.NotLockedError):
        on.unregister(ptr)


@watched
def test_of_the_host_nothing_stays_locked_by_the_kernel() -> None:
    def locked_by_the_kernel() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmLck"))

    before = locked_by_the_kernel()
    ptr = pages()
    lock = pinning.lock((ptr, SIZE), device="host")
    unmapped_in_part(ptr)
    assert not lock.held
    lock.unlock()
    pinning.pinned_map("host").drain_invalidations()
    assert locked_by_the_kernel() == before
    unmap_the_rest(ptr, unmapped_in_part)


@watched
def test_a_child_of_fork_watches_for_itself(device: FakeDevice) -> None:
    ptr = pages()
    with pinning.lock((ptr, SIZE), device=device) as lock:

        def child() -> None:
            links = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
            assert not [link for link in links if "userfaultfd" in link]
            unmapped(ptr)
            own = pages()
            held = pinning.lock((own, SIZE), device=FakeDevice())
            assert held.held
            unmapped(own)
            assert not held.held

        run_in_child(child)
        assert lock.held
    unmapped(ptr)


@watched
def test_cycles_beside_readers_copies_and_others_that_lock(device: FakeDevice) -> None:
    assert stale_after(CYCLES, device) == []
    pinning.pinned_map(device).drain_invalidations()
    assert device.locked == {}


def run_python(*arguments: str, preloaded: bool = False, **variables: str) -> str:
    """Run a Python program, which may have the kernel refuse userfaultfd, and return its output."""
    environment = {**os.environ, **({"LD_PRELOAD": str(library())} if preloaded else {}), **variables}
    done = python("-W", "ignore", *arguments, env=environment, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@filters
@pytest.mark.parametrize("preloaded", [True, False])
def test_cycles_where_the_kernel_forbids_it(preloaded: bool) -> None:
    """If the tool's library is preloaded, nothing is stale. Otherwise changes go unnoticed, as documented."""
    cycles = str(CYCLES if preloaded else 10)
    said = json.loads(run_python(str(SUPPORT / "leaving.py"), "forbidden", cycles, preloaded=preloaded))
    assert "seccomp" in said["problem"]
    assert said["preloaded"] == preloaded
    if preloaded:
        assert said["stale"] == 0, said["first"]
        assert said["locked"] == 0
    else:
        assert said["stale"] > 0, "then docs/invalidation.md says too little"


@filters
def test_a_call_that_the_kernel_refuses_ends_no_lock_where_calls_are_seen() -> None:
    """One that it does not ends all locks of the pages that it touches, also if it names only one byte of a page."""
    assert run_python("-c", REFUSED, preloaded=True).split() == ["-1", "True", "True"] * 10 + ["0", "False", "False"]


REFUSED = """
import leaving, pinning
from fake_device import WAIT, Background, FakeDevice
leaving.forbid_userfaultfd()
libc, ptr = leaving.libc, leaving.pages()
lock = pinning.lock((ptr, leaving.SIZE), device=FakeDevice())
last = pinning.lock((ptr + leaving.SIZE - 10, 10), device=FakeDevice("fake:1"))
other = leaving.pages()
TO = 2  # MREMAP_FIXED


def remap(start, size, flags, target=0):
    moved = leaving.mremap(start, leaving.SIZE, size, flags, target)
    return leaving.ctypes.c_ssize_t(moved).value


def map_over(offset):
    mapped = libc.mmap(ptr, leaving.SIZE, leaving.READ_WRITE, leaving.ANONYMOUS | leaving.FIXED, -1, offset)
    return leaving.ctypes.c_ssize_t(mapped).value


for refused in (
    lambda: libc.munmap(ptr + 1, 4096),
    lambda: libc.munmap(ptr, 0),
    lambda: libc.madvise(ptr + 1, 4096, leaving.DONTNEED),
    lambda: libc.madvise(ptr, leaving.SIZE, 9999),
    lambda: remap(ptr + 1, leaving.SIZE, leaving.MAYMOVE),
    lambda: remap(other, leaving.SIZE, TO, ptr),
    lambda: remap(ptr, leaving.SIZE, leaving.MAYMOVE | TO, ptr + leaving.mmap.PAGESIZE),
    lambda: remap(ptr, leaving.SIZE, leaving.DONTUNMAP),
    lambda: remap(ptr, leaving.SIZE // 2, leaving.MAYMOVE | leaving.DONTUNMAP),
    lambda: map_over(1),
    lambda: libc.madvise(ptr, leaving.SIZE - leaving.mmap.PAGESIZE + 1, leaving.DONTNEED),
):
    print(refused(), lock.held, last.held)
"""


def test_a_block_that_lies_below_what_was_locked_last_is_freed() -> None:
    assert run_python("-c", LOW_AND_HIGH, preloaded=True).split() == ["False", "True"]


LOW_AND_HIGH = """
import pinning
from c_library import libc
from fake_device import WAIT, Background, FakeDevice
low, high = sorted(libc.malloc(50_000) for _ in range(2))
first, last = (pinning.lock((ptr, 50_000), device=FakeDevice()) for ptr in (low, high))
libc.free(low)
print(first.held, last.held)
"""


@filters
def test_a_call_that_leaves_memory_where_it_is_ends_no_lock_where_calls_are_seen() -> None:
    """A mapping that becomes smaller ends the locks in the part that it gives up."""
    assert run_python("-c", STAYS, preloaded=True).split() == ["True"] * 6 + ["False"]


STAYS = """
import leaving, pinning
from fake_device import WAIT, Background, FakeDevice
leaving.forbid_userfaultfd()
libc, ptr, page = leaving.libc, leaving.pages(), leaving.mmap.PAGESIZE
libc.sbrk.restype, libc.brk.argtypes = leaving.ctypes.c_void_p, [leaving.ctypes.c_void_p]
first = pinning.lock((ptr, 10), device=FakeDevice())
last = pinning.lock((ptr + leaving.SIZE - page, 10), device=FakeDevice("fake:1"))
heap = pinning.lock((libc.sbrk(page), 10), device=FakeDevice("fake:2"))
print(libc.mremap(ptr, leaving.SIZE, leaving.SIZE, 0) == ptr, first.held, last.held)
print(libc.brk(None) == 0, heap.held)
libc.mremap(ptr, leaving.SIZE, leaving.SIZE - page, 0)
print(first.held, last.held)
"""


@filters
def test_memory_that_a_seen_call_takes_is_soon_unlocked_also_in_a_child_of_fork() -> None:
    assert run_python("-c", SEEN, preloaded=True) == "True\nTrue 0\n"


SEEN = """
import leaving, os, pinning
from pinning.conformance.faults import eventually
leaving.forbid_userfaultfd()

def is_unlocked():
    ptr = leaving.pages()
    lock = pinning.lock((ptr, leaving.SIZE), device="host")
    used = pinning.budget().used
    leaving.unmapped(ptr)
    return eventually(lambda: pinning.budget().used < used) and not lock.held

print(is_unlocked(), flush=True)
child = os.fork()
if child == 0:
    os._exit(not is_unlocked())
print(is_unlocked(), os.waitpid(child, 0)[1])
"""


@filters
def test_locks_anywhere_in_shared_memory_end_when_it_is_detached() -> None:
    """The kernel reports no shmdt, and locks divide the segment into several mappings. What follows it stays locked."""
    assert run_python("-c", DETACHED, preloaded=True) == "[False, False, True]\n"


DETACHED = """
import leaving, pinning
libc, page = leaving.libc, leaving.mmap.PAGESIZE
libc.shmat.restype = leaving.ctypes.c_void_p
libc.shmdt.argtypes = [leaving.ctypes.c_void_p]
libc.munmap.argtypes = [leaving.ctypes.c_void_p, leaving.ctypes.c_size_t]
libc.shmat.argtypes = [leaving.ctypes.c_int, leaving.ctypes.c_void_p, leaving.ctypes.c_int]
place = leaving.pages()
libc.munmap(place, 10 * page)
for ptr, count in ((place + 8 * page, 2), (place, 8)):
    segment = libc.shmget(0, count * page, 0o1600)
    assert libc.shmat(segment, ptr, 0) == ptr
    libc.shmctl(segment, 0, None)
locks = [pinning.lock((ptr + at * page, 2 * page), device="host") for at in (1, 5, 8)]
assert libc.munmap(ptr + 4 * page, page) == 0  # leaves a gap, behind which the rest of the segment goes too
assert libc.shmdt(ptr) == 0
print([lock.held for lock in locks])
"""


@watched
@pytest.mark.parametrize(
    ("preloaded", "said"), [(True, "(userfaultfd and the preloaded library)"), (False, "only under `pinning run`")]
)
def test_the_doctor_says_what_is_noticed_with_and_without_the_library(preloaded: bool, said: str) -> None:
    look = "from pinning_command.app import app; app(['doctor'])"
    assert said in " ".join(run_python("-c", look, COLUMNS="200", preloaded=preloaded).split())


@filters
@pytest.mark.parametrize(
    ("preloaded", "said"), [(True, "detected in libc calls"), (False, "not detected: the kernel refuses")]
)
def test_the_doctor_says_what_is_noticed_where_the_kernel_forbids_it(preloaded: bool, said: str) -> None:
    look = "import leaving; leaving.forbid_userfaultfd(); from pinning_command.app import app; app(['doctor'])"
    text = " ".join(run_python("-c", look, COLUMNS="100", preloaded=preloaded).split())
    assert said in text
    assert "seccomp" in text


@filters
def test_a_mapping_that_nothing_watches_is_not_kept_idle() -> None:
    """Its owner can discard its pages, even if it is exported; those of a bytearray cannot be discarded."""
    found = run_python("-c", f"import leaving; leaving.forbid_userfaultfd(){IDLE}")
    assert found.split() == ["0", "4096", "4096"]


IDLE = """
import mmap, pinning
from fake_device import WAIT, Background, FakeDevice
device = FakeDevice()
pinning.budget(idle=True)
for buffer in (mmap.mmap(-1, 4096), bytearray(4096), mmap.mmap(-1, 4096, access=mmap.ACCESS_READ)):
    pinning.lock(buffer, device=device).unlock()
    print(pinning.budget().idle)
    pinning.give_back_idle()
"""
WITHOUT = """
import numpy, pinning
from pinning.map.pinned_map import watch_problem
problem = watch_problem()
array = numpy.ones(100_000)
with pinning.lock(array, device="host") as lock:
    assert lock.held
print(problem)
"""


@filters
def test_without_userfaultfd_locks_work_and_the_reason_is_reported() -> None:
    said = run_python("-c", f"import leaving; leaving.forbid_userfaultfd(){WITHOUT}")
    assert "userfaultfd: Operation not permitted" in said
    assert "seccomp" in said


@watched
def test_it_begins_as_soon_as_there_is_a_descriptor_for_it(device: FakeDevice) -> None:
    def child() -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # as if all were taken
        pinning.lock((pages(), SIZE), device=device).unlock()
        assert "Too many open files" in str(watch_problem())
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        ptr = pages()
        lock = pinning.lock((ptr, SIZE), device=device)
        unmapped(ptr)
        assert not lock.held

    run_in_child(child)


def test_it_can_be_switched_off() -> None:
    assert run_python("-c", WITHOUT, PINNING_WATCH="Off") == "PINNING_WATCH=off is set\n"


CALLS = """
#include <cstdio>
#include <cstdlib>
#include <pinning/watcher.hpp>
#include <sys/mman.h>
#ifdef OWN
extern "C" void __libc_free(void*);
extern "C" void free(void* ptr) noexcept { __libc_free(ptr); }
#endif
void (*volatile release)(void*);
int (*volatile unmap)(void*, size_t);
int main() {
  release = free;
  unmap = munmap;
  release(std::malloc(1));
  std::printf("%d", pinning::process_watcher().hears_of_calls());
}
"""


def test_calls_are_seen_of_every_program_that_makes_them(tmp_path: Path) -> None:
    """A program linked to a fixed address, as many Pythons are, has stubs for functions whose addresses it takes."""
    cxx = shutil.which("c++") or pytest.skip("needs a C++ compiler: apt-get install g++")
    (tmp_path / "calls.cpp").write_text(CALLS)
    (tmp_path / "other.cpp").write_text("int nothing_of_interest;")
    (tmp_path / "frees.cpp").write_text(
        'extern "C" { void __libc_free(void*); void free(void* ptr) noexcept { __libc_free(ptr); } }'
    )

    def compiled(name: str, source: str, *options: str) -> str:
        subprocess.run([cxx, "-std=c++20", tmp_path / source, "-o", tmp_path / name, *options], check=True)
        return str(tmp_path / name)

    def seen(program: str, *first: str) -> str:
        environment = {**os.environ, "LD_PRELOAD": ":".join([*first, str(library())])}
        return subprocess.run(
            [program], env=environment, capture_output=True, text=True, check=True, timeout=600
        ).stdout

    other, frees = (compiled(f"{name}.so", f"{name}.cpp", "-shared", "-fPIC") for name in ("other", "frees"))
    folder = pinning.build.library_dirs()[0]
    pinned = [
        *(f"-I{each}" for each in pinning.build.include_dirs()),
        f"-L{folder}",
        f"-Wl,-rpath,{folder}",
        "-lpinning",
    ]
    for name, where in {"anywhere": ["-fPIE", "-pie"], "fixed": ["-fno-pie", "-no-pie"]}.items():
        program = compiled(name, "calls.cpp", *where, *pinned)
        own = compiled(f"{name}_own", "calls.cpp", "-DOWN", *where, *pinned)
        assert (seen(program), seen(program, other), seen(program, frees), seen(own)) == ("1", "1", "0", "0"), name


def test_pinning_run_watches_a_program_without_openmp() -> None:
    program = "import numpy, pinning, pinning.map.pinned_map; pinning.lock(numpy.ones(1), device='host').unlock()"
    command = [sys.executable, "-c", "from pinning_command import main; main()", "run", "--"]
    command += [sys.executable, "-c", f"{program}; print(pinning.map.pinned_map.hears_of_calls())"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")

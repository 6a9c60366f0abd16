# SPDX-License-Identifier: Apache-2.0
"""<pinning/pinning.h>: called from C, and sharing one map with Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest

import c_api
import pinning
from child_process import run_in_child
from installed import ROOT, run
from limits import needs_room_to_lock
from own_process import QUIET, python
from pinning_command.run import library

VERSION = re.findall(r'define PINNING_VERSION "(.*)"', c_api.HEADER)[0]
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
NATIVE = ROOT / "tests" / "native"
INCLUDES = [f"-I{folder}" for folder in pinning.build.include_dirs()]
LINKED = ["-lpinning", *(f"-L{folder}" for folder in pinning.build.library_dirs())]
LINKED += [f"-Wl,-rpath,{folder}" for folder in pinning.build.library_dirs()]


def compiler() -> str:
    return shutil.which("cc") or shutil.which("gcc") or pytest.skip("needs a C compiler: apt-get install gcc")


def child(scene: str) -> str:
    """Run `scene` in a fresh Python, with `c_api` imported and 10000 bytes at `ptr`, and return its output."""
    program = (
        "import c_api, ctypes, os, pinning\nmemory = bytearray(10000)\n"
        "ptr = pinning.interop.memory_of.host_buffer(memory).ptr\n"
    )
    done = python("-W", "error", *QUIET, "-c", program + scene)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def child_with(folder: Path, program: str, scene: str) -> str:
    """As `child`, with the C code `program` loaded as `library`."""
    source, library = folder / "library.c", folder / "library.so"
    source.write_text(program)
    run(compiler(), *INCLUDES, "-shared", "-fPIC", "-pthread", source, *LINKED, "-o", library, folder=folder)
    return child(f"library = ctypes.CDLL({str(library)!r})\n{scene}")


@pytest.mark.parametrize("options", [[], ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]])
def test_c_program(tmp_path: Path, options: list[str]) -> None:
    source = NATIVE / "c_api.c"
    run(compiler(), *STRICT, *options, *INCLUDES, source, *LINKED, "-o", tmp_path / "c_api", folder=tmp_path)
    assert run(tmp_path / "c_api", folder=tmp_path) == "all right\n"


@pytest.mark.parametrize("name", ["c++", "clang++"])
def test_header_is_c_plus_plus_too(tmp_path: Path, name: str) -> None:
    """Also where the compiler warns of C's casts in it, which gcc does not inside `extern "C"`."""
    source = tmp_path / "program.cpp"
    source.write_text("#include <pinning/pinning.h>\nint main() { return *pinning_version() == 0; }")
    cxx = shutil.which(name) or shutil.which(f"{name}-19") or pytest.skip(f"needs {name}: apt-get install g++ clang")
    strict = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wold-style-cast"]
    run(cxx, *strict, *INCLUDES, source, *LINKED, "-o", tmp_path / "program", folder=tmp_path)
    run(tmp_path / "program", folder=tmp_path)


@pytest.mark.parametrize(("language", "standard"), [("c", "c89"), ("c", "gnu90"), ("c++", "c++98")])
def test_the_header_says_what_it_needs(tmp_path: Path, language: str, standard: str) -> None:
    command = [compiler(), f"-x{language}", f"-std={standard}", *INCLUDES, "-fsyntax-only", "-"]
    done = subprocess.run(command, input="#include <pinning/pinning.h>\n", capture_output=True, text=True, cwd=tmp_path)
    if "cc1plus" in done.stderr:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    assert done.returncode != 0
    assert "pinning.h needs C99 or C++11" in done.stderr


def test_threads_of_small_stacks_have_them_for_themselves() -> None:
    """What a library keeps for each thread is taken from its stack, of which the smallest has 16 KiB."""
    readelf = shutil.which("readelf") or pytest.skip("needs readelf: apt-get install binutils")
    for preloaded in (c_api.LIBRARY, library()):
        lines = run(readelf, "-lW", preloaded, folder=ROOT).splitlines()
        assert [int(line.split()[5], 16) <= 256 for line in lines if line.split()[:1] == ["TLS"]] == [True]


@pytest.mark.parametrize("first", [0, 1])
def test_a_second_copy_of_the_library_is_refused(tmp_path: Path, first: int) -> None:
    """It is loaded by its path; each would have its own maps. Which is used first does not matter."""
    other = tmp_path / c_api.LIBRARY.name
    shutil.copy(c_api.LIBRARY, other)
    said = child(f"""
from ctypes import byref, c_char_p, c_void_p
libraries = [ctypes.CDLL(str(c_api.LIBRARY)), ctypes.CDLL({str(other)!r})]
for i in {[first, 1 - first]}:
    map = c_void_p()
    libraries[i].pinning_last_error.restype = c_char_p
    print(i, libraries[i].pinning_map_open(byref(map), b"host:0"), libraries[i].pinning_last_error().decode())
    functions = (c_void_p * 5)(40, 0, 8, 8, 8)
    print(i, libraries[i].pinning_map_create(byref(map), functions))
with pinning.lock(memory, device="host") as lock:
    print(lock.held)
""").splitlines()
    unavailable = c_api.STATUSES.index("PINNING_UNAVAILABLE")
    assert said.pop() == "True"
    by_library: dict[int, list[str]] = {0: [], 1: []}
    for line in said:
        i, _, rest = line.partition(" ")
        by_library[int(i)].append(re.sub(r"/\S+/libpinning.so.0(?=,)", "PATH", rest))
    assert by_library[0] == ["0 ", "0"]
    assert by_library[1] == [
        f"{unavailable} another copy of libpinning is loaded, PATH, and a process can have only one: load "
        "libpinning.so.0 by that name, or by this path",
        str(unavailable),
    ]


def test_locks_that_are_held_at_exit_are_no_leak(tmp_path: Path) -> None:
    program = """#include <pinning/pinning.h>
#include <stdlib.h>
static int lock(size_t size) {
  pinning_map *map;
  return pinning_map_open(&map, "host:0") || pinning_lock(map, malloc(size), size, 0);
}
int main(int count, char **arguments) { return count > 1 && arguments && (lock(8192) || lock(100000)); }"""
    source, built = tmp_path / "program.c", tmp_path / "program"
    source.write_text(program)
    command = [compiler(), *INCLUDES, "-fsanitize=address", source, *LINKED, "-o", built]
    if any(subprocess.run(each, capture_output=True).returncode for each in (command, [built])):
        pytest.skip("a leak sanitizer does not run here")
    done = subprocess.run([built, "lock"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_python_in_the_library() -> None:
    ldd = shutil.which("ldd") or pytest.skip("needs ldd: apt-get install libc-bin")
    assert "python" not in run(ldd, c_api.LIBRARY, folder=ROOT)


def exported(library: Path) -> set[str]:
    """The symbols that a library exports, those of C++ without arguments."""
    nm = shutil.which("nm") or pytest.skip("needs nm: apt-get install binutils")
    said = run(nm, "-DC", "--defined-only", library, folder=ROOT)
    return {re.split(r"\(|@@", line.split(maxsplit=2)[2])[0] for line in said.splitlines()}


def test_exports_are_the_headers_functions_and_what_our_own_modules_need() -> None:
    functions = set(re.findall(r"PINNING_API [\w *]+?(pinning_\w+)\(", c_api.HEADER))
    inside = {name for name in exported(c_api.LIBRARY) if name not in functions}
    versions = {"PINNING_0", f"PINNING_{VERSION}_CXX"}
    assert inside >= {*versions, "pinning::shared_map", "pinning::vendor_device"}
    marked = "".join(header.read_text() for header in c_api.INCLUDES.glob("*.hpp"))
    for name in inside - versions:
        full = name.rpartition(" for ")[2]  # without "vtable for", "typeinfo for" and the like
        assert full.startswith("pinning::")
        word = full.split("::")[1]
        assert re.search(rf"PINNING_API [^;{{]*\b{word}\b", marked), name


def test_our_own_modules_need_the_library_of_their_release() -> None:
    """Its C++ symbols are not those of another one, which the loader may find by the same name."""
    readelf = shutil.which("readelf") or pytest.skip("needs readelf: apt-get install binutils")
    said = run(readelf, "-V", pinning.map.pinned_map.__file__, folder=ROOT)
    assert f"PINNING_{VERSION}_CXX" in said.partition("Version needs section")[2]


def test_the_tool_exports_what_it_stands_in_for() -> None:
    names = exported(c_api.LIBRARY.with_name("libpinning_run.so"))
    assert names >= {"ompt_start_tool", "free", "munmap", "pthread_create", "llvm_omp_target_lock_mem"}
    assert all(re.fullmatch(r"\w+", name) for name in names)
    assert not any(name.startswith("pinning") for name in names)


def test_the_librarys_name_has_a_version() -> None:
    readelf = shutil.which("readelf") or pytest.skip("needs readelf: apt-get install binutils")
    assert "[libpinning.so.0]" in run(readelf, "-d", c_api.LIBRARY, folder=ROOT)
    assert "PINNING_0" in run(readelf, "-V", c_api.LIBRARY, folder=ROOT)


def c_program(folder: Path, text: str) -> Path:
    source, program = folder / "program.c", folder / "program"
    source.write_text(text)
    run(compiler(), *INCLUDES, f"-I{NATIVE}", "-pthread", source, *LINKED, "-o", program, folder=folder)
    return program


FORKS = r"""
#include <pinning/pinning.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static char memory[8192];
static void may_have(size_t bytes) {
  struct rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  if (bytes < limit.rlim_cur) limit.rlim_cur = bytes;
  setrlimit(RLIMIT_AS, &limit);
}
static size_t has(void) {
  size_t pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%zu", &pages) != 1) exit(8);
  fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}
static int ended(int child) {
  int status = 0;
  if (child < 0) return 6;
  return wait(&status), WIFEXITED(status) ? WEXITSTATUS(status) : 7;
}
"""


@pytest.mark.parametrize("limit", ["0", str(1 << 30)])
def test_generations_of_forks_have_no_more_addresses_than_the_first(tmp_path: Path, limit: str) -> None:
    """Each begins with an empty map and can lock, although the map takes most of the addresses that are allowed."""
    program = c_program(
        tmp_path,
        FORKS
        + r"""
int main(int count, char **arguments) {
  size_t const limit = strtoull(arguments[2], 0, 0);
  if (limit) may_have(limit);
  pinning_map *map;
  pinning_region region;
  if (pinning_map_open(&map, "host:0")) return count;
  size_t first = 0;
  for (int left = atoi(arguments[1]);; --left) {
    if (pinning_find(map, memory, 1, 0) != PINNING_NOT_LOCKED) return 3;
    if (pinning_lock(map, memory, 8192, 0)) return puts(pinning_last_error()), 4;
    if (pinning_find(map, memory, 8192, &region) || region.references != 1) return 5;
    if (first == 0) may_have((first = has()) + (128 << 20));  // a map takes at least 5 MiB
    if (left == 0) return 0;
    int const child = fork();
    if (child != 0) return ended(child);
  }
}""",
    )
    run(program, "40", limit, folder=tmp_path)


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize(
    "calls",
    ["lock,lock_mapped", "register,registrar", "budget,look,copy,create", "unmap,replace,discard", "move,free"],
)
@pytest.mark.parametrize("preload", ["", str(library())], ids=["alone", "under pinning run"])
def test_a_child_does_not_wait_for_threads_of_its_parent(
    tmp_path: Path, threads: str, calls: str, preload: str
) -> None:
    """Which may be anywhere in these calls at a fork, with the host's device. A time-out means that the child hangs."""
    needs_room_to_lock(1 << 20)
    program = c_program(tmp_path, (NATIVE / "beside_threads.c").read_text())
    environment = {**os.environ, "LD_PRELOAD": preload}
    done = subprocess.run([program, threads, calls], env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout + done.stderr == "right\n"


@pytest.mark.parametrize("preload", ["", str(library())], ids=["alone", "under pinning run"])
def test_locks_end_beside_threads_that_take_other_memory_away(tmp_path: Path, preload: str) -> None:
    """A time-out means that a lock or an unlock waits until the other threads pause, which they do not."""
    needs_room_to_lock(1 << 20)
    program = c_program(tmp_path, (NATIVE / "beside_storms.c").read_text())
    environment = {**os.environ, "LD_PRELOAD": preload}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=400)
    assert done.stdout + done.stderr == "right\n"


def test_a_child_that_has_no_addresses_for_its_map_lives_and_locks_nothing(tmp_path: Path) -> None:
    program = c_program(
        tmp_path,
        FORKS
        + r"""
int main(void) {
  pinning_map *map;
  size_t count;
  if (pinning_map_open(&map, "host:0")) return 1;
  may_have(1 << 20);
  int const child = fork();
  if (child != 0) return ended(child);
  if (pinning_find(map, memory, 1, 0) != PINNING_NOT_LOCKED) return 3;
  if (pinning_lock(map, memory, 8192, 0) != PINNING_NO_MEMORY) return 4;
  if (pinning_regions(map, 0, 0, &count) != PINNING_NO_MEMORY) return 5;
  return 0;
}""",
    )
    run(program, folder=tmp_path)


def test_a_thread_is_cancelled_after_its_call(tmp_path: Path) -> None:
    """One thread is in a locker, at a cancellation point of C; the other waits for the outcome of the first."""
    program = c_program(
        tmp_path,
        r"""
#include <pinning/pinning.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pinning_map *map;
static char memory[100];
static volatile int inside, cancelled;
static pinning_status lock(void *self, void *ptr, size_t size, void **device_ptr) {
  inside = 1;
  while (!cancelled) usleep(1000);
  *device_ptr = ptr;
  return self || !size ? PINNING_VENDOR_ERROR : PINNING_OK;
}
static pinning_status unlock(void *self, void *ptr) { return self || !ptr ? PINNING_VENDOR_ERROR : PINNING_OK; }
static pinning_status is_pinned(void *self, const void *ptr, pinning_pinned *pinned) {
  return self || !ptr || !pinned ? PINNING_VENDOR_ERROR : PINNING_NOT_LOCKED;
}
static void *count_one(void *done) {
  *(int *)done = pinning_lock(map, memory, 100, 0) == PINNING_OK;
  pthread_testcancel();
  return 0;
}
int main(void) {
  pinning_locker const calls = {sizeof calls, 0, lock, unlock, is_pinned};
  pthread_t threads[2];
  int done[2] = {0};
  void *ends[2];
  pinning_region region;
  pinning_map_create(&map, &calls);
  pthread_create(&threads[0], 0, count_one, &done[0]);
  while (!inside) usleep(1000);
  pthread_create(&threads[1], 0, count_one, &done[1]);
  usleep(100000); /* so that it waits, most likely */
  for (int i = 0; i < 2; ++i) pthread_cancel(threads[i]);
  usleep(100000);
  cancelled = 1;
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], &ends[i]);
  printf("%d %d %d %d ", done[0], done[1], ends[0] == PTHREAD_CANCELED, ends[1] == PTHREAD_CANCELED);
  if (pinning_find(map, memory, 1, &region) == PINNING_OK) printf("%u\n", region.references);
  return 0;
}""",
    )
    assert run(program, folder=tmp_path).split() == ["1", "1", "1", "1", "2"]


def test_a_registrar_that_is_removed_while_it_is_added() -> None:
    """The removal waits for the call in which it is told of a lock, and no longer."""
    assert child("""
import threading
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_void_p
from fake_device import WAIT, Background
from pinning.conformance.faults import eventually
Add, Remove = CFUNCTYPE(c_int, *[c_void_p] * 2, c_size_t, POINTER(c_void_p)), CFUNCTYPE(c_int, *[c_void_p] * 2)
class Registrar(Structure):
    _fields_ = [("struct_size", c_size_t), ("self", c_void_p), ("name", c_char_p), ("piece", c_size_t),
                ("add", Add), ("remove", Remove)]
told, go_on, removed = threading.Event(), threading.Event(), []
def slow(*_):
    told.set()
    return 0 if go_on.wait(WAIT) else 1
native = c_api.Map("host:0")
native.lock(ptr, 10000)
gives_back = Remove(lambda *_: removed.append(1) or 0)
first = Registrar(ctypes.sizeof(Registrar), 5, None, 0, Add(slow), gives_back)
second = Registrar(ctypes.sizeof(Registrar), 5, None, 0, Add(lambda *_: 0), gives_back)
def add(registrar):
    c_api.call("pinning_add_registrar", native._map, byref(registrar))
def remove():
    c_api.call("pinning_remove_registrar", native._map, c_void_p(5))
def is_out():  # another may have the same `self` then
    try:
        add(second)
    except c_api.StatusError:
        return False
    return True
adding = Background(lambda: add(first))
assert told.wait(WAIT)
removing = Background(remove)
assert eventually(is_out) and removing.is_alive() and not removed
go_on.set()
adding.result()
removing.result()
print(len(removed))
remove()
native.unlock(ptr)
print(len(removed))
""").split() == ["1", "2"]


# ---- one map ----


@pytest.fixture
def memory() -> bytearray:
    return bytearray(b"x" * 10000)


def address(buffer: bytearray) -> int:
    return pinning.interop.memory_of.host_buffer(buffer).ptr


def test_python_first(memory: bytearray) -> None:
    with pinning.lock(memory, device="host") as lock:
        native = c_api.Map("host:0")
        found = native.find(lock.ptr, 10000)
        assert found == (lock.ptr, 10000, lock.device_ptr, 10000, 1, 0)
        assert native.lock(lock.ptr + 10, 5) == lock.device_ptr + 10
        assert lock.region is not None and lock.region.references == 2
    region = pinning.find(memory)
    assert region is not None and region.references == 1
    native.unlock(address(memory))
    assert pinning.find(memory) is None
    assert native.regions() == []


def test_native_code_first() -> None:
    said = child("""
native = c_api.Map("host:0")
native.lock(ptr, 10000)
region = pinning.find(memory, device="host")
print(region.references, region.size, region.device_ptr == ptr, region.coherent, region.device.name)
lock = pinning.lock(memory, device="host")
print(native.find(ptr).references, lock.held, lock.region == pinning.find(memory))
native.unlock(ptr)
lock.unlock()
print(native.regions(), pinning.regions())
for broken in [(8192, 10), (ptr + 9999, 0)]:
    try:
        pinning.pinned_map("host").lock(*broken)
    except pinning.VendorError as error:
        print(error.call, error.code, error.name, error.advice)
    except pinning.InvalidRangeError as error:
        print("InvalidRangeError")
""")
    where = "[0x2000, 0x3000) (4096 bytes)"
    assert said.splitlines() == [
        "1 10000 True True host:0",
        "2 True True",
        "[] []",
        f"mlock 12 ENOMEM some of {where} is not mapped; was it freed?",
        "InvalidRangeError",
    ]


def test_automatic_locks_are_one_account() -> None:
    assert child("""
from pinning.locking.mapped import lock_mapped, unlock_unmapped
os.environ["PINNING_LOCK_MAPPED"] = "on"
native = c_api.Map("host:0")
lock_mapped(memory, device="host")
native.lock_mapped(ptr, 10000, c_api.OFF)
print(native.find(ptr).references)
native.unlock_unmapped(ptr)
unlock_unmapped(memory, device="host")
print(native.find(ptr))
""").split() == ["2", "None"]


def test_a_map_made_by_hand_stays_private(memory: bytearray) -> None:
    with pinning.PinnedMap(pinning.device("host")) as private:
        private.lock(address(memory), 10000)
        assert c_api.Map("host:0").find(address(memory)) is None


def test_maps_of_python_devices_are_pythons_own() -> None:
    said = child("""
from fake_device import FakeDevice
class Odd(FakeDevice, pinning.plugin.AutomaticLocking):
    name = "odd:0"
odd = Odd()
for shared in (False, True):
    try:
        with pinning.PinnedMap(odd, shared=shared) as private:
            private.lock(ptr, 100)
            print(len(private))
    except TypeError as error:
        print("native" in str(error))
try:
    c_api.Map("odd")
except c_api.StatusError as refused:
    print(refused.status)
""")
    assert said.split() == ["1", "True", "PINNING_INVALID_ARGUMENT"]


def test_native_threads_beside_python(tmp_path: Path) -> None:
    """They do not need Python: here they run while a Python thread that holds the GIL waits for them."""
    program = r"""
#include <pinning/pinning.h>
#include <pthread.h>
static pinning_map *map;
static void *work(void *memory) {
  long refused = 0;
  for (int i = 0; i < 200; ++i) {
    refused += pinning_lock(map, memory, 100, 0) != PINNING_OK;
    refused += pinning_find(map, memory, 100, 0) != PINNING_OK;
    refused += pinning_unlock(map, memory) != PINNING_OK;
  }
  return (void *)refused;
}
long work_in_threads(char *memory) {
  pthread_t threads[4];
  void *refused;
  long all = pinning_map_open(&map, "host:0");
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], 0, work, memory + 1000 * (i / 2));
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], &refused), all += (long)refused;
  return all;
}
"""
    scene = """
pinning.lock(memory, device="host").unlock()  # so that Python knows the map
library = ctypes.PyDLL(library._name)  # whose functions keep the GIL
print(library.work_in_threads(ctypes.c_void_p(ptr)), pinning.regions())
"""
    assert child_with(tmp_path, program, scene).split() == ["0", "[]"]


def test_python_finds_the_region_of_one_device_while_that_of_another_comes_and_goes(tmp_path: Path) -> None:
    """Native code unlocks it: a Python thread could hardly do so between two steps of one that holds the GIL."""
    program = r"""
#include <pinning/pinning.h>
long come_and_go(char *memory) {
  pinning_map *map;
  long refused = pinning_map_open(&map, "host:0");
  for (int i = 0; i < 100000; ++i) {
    refused += pinning_lock(map, memory, 100, 0) != PINNING_OK;
    refused += pinning_unlock(map, memory) != PINNING_OK;
  }
  return refused;
}
"""
    scene = """
from fake_device import Background, FakeDevice
pinning.lock(memory, device="host").unlock()  # so that this device's map is looked at first
with pinning.lock(memory, device=FakeDevice()):
    other = Background(lambda: library.come_and_go(ctypes.c_void_p(ptr)))
    absent = 0
    while other.is_alive():
        absent += sum(pinning.find(ptr) is None for _ in range(1000))
print(other.result(), absent)
"""
    assert child_with(tmp_path, program, scene).split() == ["0", "0"]


@pytest.mark.parametrize("first", ["native", "python"])
def test_the_map_outlives_python(tmp_path: Path, first: str) -> None:
    program = r"""
#include <pinning/pinning.h>
#include <stdio.h>
#include <stdlib.h>
static pinning_map *map;
static char buffer[100];
static void *pythons;
static void at_exit(void) {
  pinning_region region;
  printf("%d ", pinning_find(map, pythons, 1, 0) == PINNING_NOT_LOCKED); /* Python has given up its own */
  printf("%d ", pinning_find(map, buffer, 50, &region) == PINNING_OK ? (int)region.references : -1);
  printf("%d ", pinning_unlock(map, buffer));
  printf("%d\n", pinning_lock(map, buffer, 100, 0));
  fflush(stdout);
}
void begin(void *memory) {
  pythons = memory;
  pinning_map_open(&map, "host:0");
  pinning_lock(map, buffer, 50, 0);
  atexit(at_exit);
}
"""
    scene = "pinning.lock(memory, device='host').unlock()" if first == "python" else ""
    scene += """
library.begin(ctypes.c_void_p(ptr))
(native,) = pinning.regions("host")
held = pinning.lock(memory, device="host"), pinning.lock(native.start, 10, device="host")
print(len(pinning.regions("host")))
"""
    assert child_with(tmp_path, program, scene).split() == ["2", "1", "1", "0", "0"]


def test_closing_pythons_side_of_the_map() -> None:
    assert child("""
native = c_api.Map("host:0")
native.lock(ptr, 100)
lock = pinning.lock(memoryview(memory)[50:60], device="host")
pinning.pinned_map("host").close()
print(lock.held, native.find(ptr).references)
try:
    pinning.lock(memory, device="host")
except pinning.PinningError:
    print("closed")
native.unlock(ptr)
print(native.regions())
""").split() == ["False", "1", "closed", "[]"]


def test_the_child_of_a_fork_begins_anew(memory: bytearray) -> None:
    native = c_api.Map("host:0")
    ptr = address(memory)
    with pinning.lock(memory, device="host") as lock:
        native.lock(ptr, 10)

        def in_child() -> None:
            assert native.regions() == [] == pinning.regions()
            assert not lock.held
            with pytest.raises(c_api.StatusError, match="NOT_LOCKED"):
                native.unlock(ptr)
            native.lock(ptr, 100)
            region = pinning.find(memory[:0] or (ptr, 100), device="host")
            assert region is not None and region.references == 1
            with pinning.lock((ptr, 50), device="host"):
                assert native.find(ptr) == (ptr, 100, ptr, 100, 2, 0)
            native.unlock(ptr)

        run_in_child(in_child)
        assert lock.held and native.find(ptr) == (ptr, 10000, ptr, 10000, 2, 0)
        native.unlock(ptr)


# ---- limits ----


def test_more_than_may_be_locked() -> None:
    said = child("""
import mmap, pytest
from child_process import run_as_ordinary_user
def too_much():
    native = c_api.Map("host:0")
    much = mmap.mmap(-1, 16 << 20)
    with pytest.raises(c_api.StatusError, match="RLIMIT_MEMLOCK allows 8388608 bytes") as refused:
        native.lock(pinning.interop.memory_of.host_buffer(much).ptr, 16 << 20)
    assert refused.value.status == "PINNING_LOCK_LIMIT"
    assert native.regions() == []
try:
    run_as_ordinary_user(too_much)
except pytest.skip.Exception as reason:
    print(reason)
""")
    if said:
        pytest.skip(said)


# ---- copies ----


def test_a_copy_that_is_refused() -> None:
    bytes_ = numpy.zeros(100, numpy.uint8)
    native = c_api.Map("host:0")
    with pinning.alloc(50, device="host:0") as device:
        with pytest.raises(c_api.StatusError, match=r"dst .* runs past the end of an allocation") as refused:
            native.copy(device.ptr, bytes_.ctypes.data, 100)
        assert refused.value.status == "PINNING_INVALID_RANGE"


def test_a_batch_that_is_refused() -> None:
    bytes_ = numpy.zeros(100, numpy.uint8)
    native = c_api.Map("host:0")
    with pinning.alloc(100, device="host:0") as device:
        dsts = numpy.array([device.ptr, device.ptr + 50], numpy.uint64)
        srcs = numpy.full(2, bytes_.ctypes.data, numpy.uint64)
        for there, here in ((dsts, srcs), (srcs, dsts)):
            with pytest.raises(c_api.StatusError, match="item 1 of the batch: it runs past the end") as refused:
                native.copy_batch(there, here, numpy.array([50, 51], numpy.uint64))
            assert refused.value.status == "PINNING_INVALID_RANGE"

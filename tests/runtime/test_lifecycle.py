# SPDX-License-Identifier: Apache-2.0
"""What becomes of locks when the process forks, exits or is interrupted."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import pinning
from child_process import run_in_child
from fake_device import LOCKED_OFFSET, WAIT, Background, FakeDevice
from limits import needs_room_to_lock
from own_process import python
from pinning import NotLockedError, PinnedMap

BASE, SIZE = 0x10000, 0x1000


def run_program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that can import the tests' helpers."""
    return python("-X", "dev", "-W", "ignore", "-c", PRELUDE + textwrap.dedent(text), *arguments)


PRELUDE = """\
import atexit, gc, mmap, os, signal, sys, threading, time
import pinning
from fake_device import Background, FakeDevice
from limits import locked_kib

class Loud(FakeDevice):
    def data_unlock(self, ptr):
        super().data_unlock(ptr)
        os.write(1, f"{os.getpid() == first} unlock {ptr:#x}\\n".encode())

first = os.getpid()
device = Loud()
"""


def outcome(program: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return program.returncode, program.stdout, program.stderr


def test_descriptors_of_ours_are_not_those_of_closed_streams() -> None:
    """A program that has closed its streams opens other files in their place, and may expect their numbers."""
    program = """
        output = os.dup(1)
        for descriptor in range(3):
            os.close(descriptor)
        lock = pinning.lock(bytearray(4096), device="host")
        os.write(output, str([os.open(os.devnull, os.O_RDWR) for _ in range(3)]).encode())
        """
    assert run_program(program).stdout == "[0, 1, 2]"


# ---- fork ----


def test_the_child_of_a_fork_sees_no_locks(device: FakeDevice) -> None:
    pinned = PinnedMap(device)
    pinned.lock(BASE, SIZE)
    pinned.register(BASE + SIZE, SIZE, 1)
    values = np.zeros(1000)
    lock = pinning.lock(values, device=device)
    locked, calls = dict(device.locked), len(device.calls)

    def child() -> None:
        assert (len(pinned), list(pinned), pinned.find(BASE)) == (0, [], None)
        with pytest.raises(NotLockedError):
            pinned.unlock(BASE)
        assert not lock.held
        assert lock.region is None
        assert not pinning.is_locked(values)
        with pytest.raises(NotLockedError):
            pinning.unlock(values)
        lock.unlock()
        pinned.close()
        assert len(device.calls) == calls, "the parent's locks are none of the child's business"

    run_in_child(child)
    assert (device.locked, len(device.calls)) == (locked, calls)
    assert lock.held
    assert next(iter(pinned)).references == 1
    lock.unlock()
    pinned.close()
    assert device.locked == {}


def test_the_child_drops_the_parents_handles_in_silence(device: FakeDevice) -> None:
    locks = [pinning.lock(bytearray(100), device=device)]
    calls = len(device.calls)

    def child() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            locks.clear()
        assert len(device.calls) == calls

    run_in_child(child)
    assert locks[0].held
    locks[0].unlock()


def test_the_child_locks_its_own(device: FakeDevice) -> None:
    values = np.zeros(1000)
    parents = pinning.lock(values[:10], device=device)

    def child() -> None:
        device.locked.clear()  # the child's vendor has locked nothing
        whole = pinning.lock(values, device=device)
        assert whole.device_ptr == whole.ptr + LOCKED_OFFSET
        assert not parents.held
        pinning.unlock(values[:10], device=device)  # does not release the parent's lock, which has exactly this range
        assert not whole.held
        assert device.locked == {}

    run_in_child(child)
    assert parents.held
    parents.unlock()


@pytest.mark.parametrize("method", ["data_lock", "data_unlock"])
def test_fork_while_another_thread_is_in_a_vendor_call(device: FakeDevice, method: str) -> None:
    pinned = PinnedMap(device)
    pinned.lock(BASE + SIZE, SIZE)
    if method == "data_unlock":
        pinned.lock(BASE, SIZE)

    def child() -> None:
        device.locked.clear()
        assert list(pinned) == []
        pinned.lock(BASE, 2 * SIZE)  # would wait for the other thread, which is not here
        pinned.close()
        assert device.locked == {}

    with device.stopping(method, BASE) as gate:
        thread = Background(lambda: pinned.lock(BASE, SIZE) if method == "data_lock" else pinned.unlock(BASE))
        assert gate.reached.wait(WAIT)
        run_in_child(child)
    thread.result()
    assert len(pinned) == (2 if method == "data_lock" else 1)
    pinned.close()
    assert device.locked == {}


def test_fork_while_other_threads_have_the_map_in_hand() -> None:
    class Silent:
        name = "silent:0"

        def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
            return ptr

        def data_unlock(self, ptr: int) -> None:
            pass

        def is_pinned_ptr(self, ptr: int) -> None:
            pass

    pinned = PinnedMap(Silent())
    for start in range(BASE, BASE + 3000 * SIZE, SIZE):
        pinned.lock(start, SIZE // 2)
    stop = threading.Event()

    def churn(start: int) -> None:
        while not stop.is_set():
            list(pinned)  # holds the mutex for long, without the GIL
            pinned.lock(start, 10)
            pinned.unlock(start)

    def child() -> None:
        assert list(pinned) == []
        pinned.lock(BASE, SIZE)
        assert len(pinned) == 1
        pinned.close()

    threads = [Background(lambda at=at: churn(at)) for at in (BASE - 100, BASE - 50)]  # type: ignore[misc]
    try:
        for _ in range(30):
            run_in_child(child)
    finally:
        stop.set()
    for thread in threads:
        thread.result()
    assert len(pinned) == 3000


# ---- exit ----


def test_exit_unlocks_what_is_left() -> None:
    program = run_program("""
        kept = pinning.lock(bytearray(100), device=device)
        apart = pinning.PinnedMap(device)
        apart.lock(0x1000, 10)
        apart.lock(0x1000, 5)
        print("end of the program", flush=True)
    """)
    code, said, errors = outcome(program)
    assert (code, errors) == (0, "")
    lines = said.splitlines()
    assert lines[0] == "end of the program"
    assert lines.count("True unlock 0x1000") == 1
    assert len(lines) == 3, "every region once"


@pytest.mark.parametrize(("leave", "code"), [("sys.exit(3)", 3), ("1 / 0", 1)])
def test_an_exit_with_an_error_unlocks_too(leave: str, code: int) -> None:
    program = run_program(f"kept = pinning.lock(bytearray(100), device=device)\n{leave}")
    assert program.returncode == code
    assert program.stdout.count("True unlock") == 1


def test_exit_while_the_vendor_refuses() -> None:
    program = run_program("""
        maps = [pinning.PinnedMap(device) for _ in range(3)]
        for at, each in enumerate(maps):
            each.lock(0x1000 + at * 100, 10)
        device.fail(pinning.VendorError("fakeCall", 1, "FAKE"))
    """)
    assert program.returncode == 0
    assert program.stdout.count("True unlock") >= 2, "one that is refused does not keep the others locked"
    assert "Fatal" not in program.stderr


def test_exit_with_locks_in_a_cycle() -> None:
    program = run_program("""
        gc.disable()
        class Owner(Loud): pass
        owner = Owner()
        owner.own = pinning.PinnedMap(owner)
        owner.own.lock(0x2000, 10)
        lock = pinning.lock(bytearray(10), device=device)
        lock.itself = lock
        del owner, lock
    """)
    code, said, errors = outcome(program)
    assert (code, errors) == (0, "")
    assert said.count("True unlock") == 2


@pytest.mark.parametrize("piece", ["None", "10"])
@pytest.mark.parametrize("wakes", ["never", "while the interpreter ends"])
def test_exit_with_a_daemon_thread_inside_a_lock(piece: str, wakes: str) -> None:
    program = run_program(f"""
        class Slow(Loud):
            def data_lock(self, ptr, size, read_only):
                while ptr == 0x2000:  # so that it does not come back before the interpreter ends
                    inside.set()
                    time.sleep({600 if wakes == "never" else 0.01})
                return super().data_lock(ptr, size, read_only)

        class Late:
            def __del__(self, sleep=time.sleep):  # modules are emptied when the interpreter has ended for threads
                sleep(0.6)

        inside = threading.Event()
        pinned = pinning.PinnedMap(Slow())
        pinned.lock(0x1000, 10)
        for part in (20, 10):
            threading.Thread(target=lambda: pinned.lock(0x2000, part, piece={piece}), daemon=True).start()
        assert inside.wait(60)
        sys.late = Late()
    """)
    code, said, errors = outcome(program)
    assert (code, errors) == (0, "")
    assert "True unlock 0x1000" in said
    assert "0x2000" not in said


LATE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct start { void* (*routine)(void*); void* argument; };
static void* late(void* given) {
  struct start const start = *(struct start*)given;
  free(given);
  usleep(300000);
  Dl_info info;
  dladdr((void*)start.routine, &info);
  char const* const name = strrchr(info.dli_fname, '/');
  if (strncmp(name, "/python", 7) == 0 || strncmp(name, "/libpython", 10) == 0) write(1, "begins\n", 7);
  return start.routine(start.argument);
}
int pthread_create(pthread_t* thread, pthread_attr_t const* attributes, void* (*routine)(void*), void* argument) {
  int (*const next)(pthread_t*, pthread_attr_t const*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  struct start* const start = malloc(sizeof *start);
  *start = (struct start){routine, argument};
  return next(thread, attributes, late, start);
}
"""


@pytest.mark.parametrize(
    "begins",
    [
        "kept = pinning.lock_async(bytearray(100), device=device)",
        "kept = pinning.Arena(1 << 20, devices=device)",
        "from pinning.runtime.process import defer; defer(print)",
        pytest.param(
            "atexit.unregister(end); atexit.register(pinning.lock_async, (4096, 9), device=device); "
            "atexit.register(end)",
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 starts no thread at its end"),
        ),
    ],
    ids=["lock_async", "arena", "service", "after our own exit"],
)
def test_a_thread_that_is_only_beginning_begins_before_the_interpreter_ends(
    begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Python 3.11 crashes."""
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler: apt-get install gcc")
    source, library = tmp_path / "late.c", tmp_path / "late.so"
    source.write_text(LATE)
    subprocess.run([compiler, "-shared", "-fPIC", "-w", source, "-o", library], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    program = run_program(f"""
        from pinning.runtime.process import _exit as end

        class Late:
            def __del__(self, sleep=time.sleep, write=os.write):
                write(1, b"ends\\n")
                sleep(1)

        {begins}
        sys.late = Late()
    """)
    lines = [line for line in program.stdout.splitlines() if "unlock" not in line]
    assert (program.returncode, lines[:1], lines[-1:], program.stderr) == (0, ["begins"], ["ends"], "")


@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)"])
def test_exit_of_a_child_leaves_the_parents_locks_alone(leave: str) -> None:
    program = run_program(f"""
        kept = pinning.lock(bytearray(100), device=device)
        child = os.fork()
        if child == 0:
            device.locked.clear()
            own = pinning.lock(bytearray(200), device=device)
            {leave}
        assert os.waitpid(child, 0)[1] == 0
        assert device.locked == {{kept.ptr: 100}}
        assert kept.held
        os.write(1, b"the child has ended\\n")
    """)
    code, said, errors = outcome(program)
    assert (code, errors) == (0, "")
    before, _, after = said.partition("the child has ended\n")
    assert before.count("False unlock") == (1 if leave == "sys.exit(0)" else 0)
    assert before.count("True") == 0
    assert after.count("True unlock") == 1


def test_exit_with_memory_of_the_host_locked() -> None:
    program = run_program("""
        kept = [pinning.lock(mmap.mmap(-1, 4096), device="host") for _ in range(5)]
        atexit._run_exitfuncs()
        print(locked_kib(), [lock.held for lock in kept])
    """)
    assert outcome(program) == (0, "0 [False, False, False, False, False]\n", "")


# ---- Ctrl-C ----


@pytest.mark.parametrize("after", [0.02, 0.1])
def test_ctrl_c_while_much_is_locked(after: float) -> None:
    needs_room_to_lock(512 << 20)
    program = run_program(
        """
        parent = os.getpid()
        locks, rounds = [], 0
        try:
            threading.Timer(float(sys.argv[1]), os.kill, (parent, signal.SIGINT)).start()
            while True:
                rounds += 1
                locks.append(pinning.lock(mmap.mmap(-1, 512 << 20), device="host"))
                locks.pop().unlock()
        except KeyboardInterrupt:
            locks.clear()
            print(locked_kib(), pinning.regions())
        """,
        str(after),
    )
    assert outcome(program) == (0, "0 []\n", "")


@pytest.mark.parametrize(
    "once",
    [
        "with pinning.lock(buffer, device='host'): pass",
        "pinned.lock(at, 1 << 13); pinned.unlock(at)",
        "pinning.alloc(1 << 13, pinning.MemoryKind.HOST, device='host').free()",
        "pinning.alloc(1 << 13, device='host').free()",
    ],
)
def test_thousands_of_signals(once: str) -> None:
    """Nothing hangs, nothing stays locked, and memory is freed only once."""
    program = run_program(f"""
        armed, interrupted = False, 0

        def handler(number, frame):
            global armed
            if armed:
                armed = False  # what cleans up is let alone
                raise KeyboardInterrupt

        buffer = mmap.mmap(-1, 1 << 13)
        at, pinned = pinning.interop.memory_of.host_buffer(buffer).ptr, pinning.pinned_map("host")
        for _ in range(3):
            {once}
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
        while interrupted < 3000:
            try:
                armed = True
                while True:
                    {once}
            except KeyboardInterrupt:
                interrupted += 1
                for region in pinning.regions("host"):  # of one that was interrupted between its two halves
                    if not region.registered:
                        pinning.pinned_map("host").unlock(region.start)
        signal.setitimer(signal.ITIMER_REAL, 0)
        {once}
        end = time.monotonic() + 60  # what was dropped is freed by another thread
        while (locked_kib() or pinning.regions()) and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        assert locked_kib() == 0, locked_kib()
        assert pinning.regions() == [], pinning.regions()
    """)
    assert program.returncode == 0, program.stderr


def test_a_lock_taken_in_a_signal_handler() -> None:
    program = run_program("""
        def handler(number, frame):
            with pinning.lock(bytearray(10), device=device):
                handled.append(pinning.regions(device))
            signal.setitimer(signal.ITIMER_REAL, 0.001)

        handled = []
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        values = bytearray(1000)
        while len(handled) < 20:
            pinning.lock(values, device=device).unlock()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert device.locked == {}
        assert device.wrong == []
    """)
    assert program.returncode == 0, program.stderr


def test_a_map_that_is_dropped_while_the_vendor_refuses_says_nothing() -> None:
    program = run_program("""
        dropped, kept = pinning.PinnedMap(device), pinning.PinnedMap(device)
        dropped.lock(0x1000, 10)
        kept.lock(0x2000, 10)
        device.data_unlock = lambda ptr: 1 / 0
        del dropped
    """)
    assert outcome(program) == (0, "", "")


def test_a_map_that_goes_with_the_interpreter_says_nothing() -> None:
    program = run_program("""
        from fake_memory import FakeMemoryDevice
        fake = FakeMemoryDevice(held=False)
        with pinning.Queue(fake) as queue:
            memory, _ = queue.alloc(100, pinning.MemoryKind.HOST)
            queue.free(memory)
        del memory  # the default pool keeps it, which the map knows
    """)
    assert outcome(program) == (0, "", "")


@pytest.mark.parametrize("main_too", [False, True])
def test_a_sub_interpreter_is_told_that_it_cannot(main_too: bool) -> None:
    program = f"""
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
{"import pinning" if main_too else ""}
inside = "try: import pinning\\nexcept ImportError as error: print(error, flush=True)"
run(interpreters.create(), inside)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("pinning works in the main interpreter of a process alone"), done.stderr

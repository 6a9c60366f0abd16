# SPDX-License-Identifier: Apache-2.0
"""Saves in the background: the file is complete or absent, and tensors may be changed once the call returns."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy
import pytest

import pinning
from child_process import run_in_child
from file_copies import descriptors_of
from noise import noise
from pinning.conformance.faults import eventually
from pinning.files import order
from pinning.files import save as saving


def load(path: Path) -> dict[str, numpy.ndarray]:
    return pinning.load_file(path, "host", framework="numpy")


def test_a_file_in_the_background(tmp_path: Path) -> None:
    arrays = {"a": noise(5 << 20), "b": noise(80).view("f8"), "none": numpy.empty((0, 2), "f4")}
    event = pinning.save_file_async(arrays, tmp_path / "a", {"made": "here"}, fsync=True)
    for array in arrays.values():
        array[...] = 0
    event.wait()
    found = load(tmp_path / "a")
    assert (found["a"] == noise(5 << 20)).all()
    assert (found["b"] == noise(80).view("f8")).all()
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    pinning.save_file({}, tmp_path / "sync")
    pinning.save_file_async({}, tmp_path / "empty").wait()
    assert (tmp_path / "empty").read_bytes() == (tmp_path / "sync").read_bytes()
    assert eventually(lambda: descriptors_of(tmp_path / "a") == 0)


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Large files are not complete until this is set."""
    event = threading.Event()
    complete = saving._Saving.complete

    def late(self: saving._Saving) -> None:
        if self._written.nbytes > 10_000:
            event.wait(600)
        complete(self)

    monkeypatch.setattr(saving._Saving, "complete", late)
    return event


NEWEST = {"a": noise(5, 1)}
THEN: dict[str, Callable[[Path], object]] = {
    "save": partial(pinning.save_file, NEWEST),
    "save_async": lambda path: pinning.save_file_async(NEWEST, path).wait(),
    "load": load,
    "load_folder": lambda path: load(path.parent),
    "load_index": lambda path: load(path.parent / "index.json"),
    "copy": lambda path: pinning.copy_file(numpy.zeros(20_000, "u1"), path, 0, 20_000),
}


@pytest.mark.parametrize("then", THEN)
def test_calls_take_effect_in_their_order(tmp_path: Path, go: threading.Event, then: str) -> None:
    """A save in the background, by a link to the file, and a call after it."""
    path, link = tmp_path / "a.safetensors", tmp_path / "link"
    pinning.save_file({"a": noise(7)}, path)
    (tmp_path / "index.json").write_text('{"weight_map": {"a": "a.safetensors"}}')
    link.symlink_to(path)
    saved = pinning.save_file_async({"a": noise(20_000)}, link)
    threading.Timer(0.2, go.set).start()
    found = THEN[then](path)
    saved.wait()
    newest = found if isinstance(found, dict) else load(path)
    assert (newest["a"] == (NEWEST["a"] if then.startswith("save") else noise(20_000))).all()
    assert not order._pending


def test_a_folder_is_loaded_with_the_files_that_are_being_saved_there(tmp_path: Path, go: threading.Event) -> None:
    pinning.save_file({"a": noise(7)}, tmp_path / "a.safetensors")
    saved = pinning.save_file_async({"b": noise(20_000)}, tmp_path / "b.safetensors")
    threading.Timer(0.2, go.set).start()
    assert sorted(load(tmp_path)) == ["a", "b"]
    saved.wait()


def test_a_save_behind_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: threading.Event) -> None:
    first = pinning.save_file_async({"a": noise(20_000)}, tmp_path / "a")
    second = pinning.save_file_async({"a": noise(20_001)}, tmp_path / "a")
    monkeypatch.setattr(Path, "replace", refused)
    go.set()
    for event in (first, second):
        with pytest.raises(OSError, match="No space"):
            event.wait()
    monkeypatch.undo()
    pinning.save_file_async(NEWEST, tmp_path / "a").wait()
    assert (load(tmp_path / "a")["a"] == NEWEST["a"]).all()


def test_a_save_that_cannot_be_called_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory for the call: its function is dropped, and its event is complete."""
    queue = Mock(call=lambda function, wait_for: pinning.Event())
    with monkeypatch.context() as patched:
        patched.setattr(order, "kept_queue", lambda *which: queue)
        pinning.save_file_async({"a": noise(7)}, tmp_path / "a")
    gc.collect()
    pinning.save_file(NEWEST, tmp_path / "a")
    assert (load(tmp_path / "a")["a"] == NEWEST["a"]).all()


def test_a_hook_that_saves_again(tmp_path: Path) -> None:
    """`sys.unraisablehook`, called for a save that failed, while another save of that file is in the background."""
    program = f"""
import os, sys, threading
import numpy, pinning
from pinning.files import save
again, go = threading.Event(), threading.Event()
def hook(unraisable):
    pinning.save_file({{"a": numpy.arange(3)}}, {str(tmp_path / "a")!r})
    again.set()
sys.unraisablehook = hook
complete = save._Saving.complete
def failing(self):
    save._Saving.complete = complete
    go.wait()
    raise OSError(28, "No space left on device")
save._Saving.complete = failing
pinning.save_file_async({{"a": numpy.arange(4)}}, {str(tmp_path / "a")!r})
event = pinning.save_file_async({{"a": numpy.arange(5)}}, {str(tmp_path / "a")!r})
go.set()
event.wait()
assert again.is_set()
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)
    assert (load(tmp_path / "a")["a"] == numpy.arange(5)).all()


def test_complete_saves_keep_no_threads(tmp_path: Path) -> None:
    def threads() -> int:
        return len([*Path("/proc/self/task").iterdir()])

    pinning.save_file_async(NEWEST, tmp_path / "a").wait()
    before = threads()
    events = [pinning.save_file_async(NEWEST, tmp_path / f"{i % 4}") for i in range(50)]
    for event in events:
        event.wait()
    assert threads() < before + 10


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"arena is 5; it must be a pinning\.Arena"):
        pinning.save_file_async({"a": noise(6)}, tmp_path / "a", arena=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fsync is 'no'; it must be True or False"):
        pinning.save_file({"a": noise(6)}, tmp_path / "a", fsync="no")  # type: ignore[arg-type]
    for tensors, path, error in [
        ({"a": [1]}, tmp_path / "a", TypeError),
        ({"a": noise(6).reshape(2, 3).T}, tmp_path / "a", pinning.LayoutError),
        ({"a": noise(6)}, tmp_path / "none" / "a", FileNotFoundError),
        ({"a": noise(6)}, tmp_path, pinning.FileError),
    ]:
        with pytest.raises(error):
            pinning.save_file_async(tensors, path)
    assert not [*tmp_path.iterdir()]


def refused(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", [(saving._Saving, "complete"), (os, "fsync"), (Path, "replace")], ids=str)
@pytest.mark.parametrize("background", [False, True])
def test_a_failure_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[object, str], background: bool
) -> None:
    (tmp_path / "a").write_bytes(b"as it was")
    monkeypatch.setattr(*where, refused)
    with pytest.raises(OSError, match="No space") as caught:
        if background:
            pinning.save_file_async({"a": noise(100)}, tmp_path / "a", fsync=True).wait()
        else:
            pinning.save_file({"a": noise(100)}, tmp_path / "a", fsync=True)
    assert caught.value.filename == str(tmp_path / "a")
    gc.collect()
    files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [each for each in files if each.startswith(str(tmp_path))], "it is closed, and so is its folder"
    assert (tmp_path / "a").read_bytes() == b"as it was"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_the_folder_is_removed_meanwhile(tmp_path: Path, go: threading.Event) -> None:
    path = tmp_path / "folder/a"
    path.parent.mkdir()
    saved = pinning.save_file_async({"a": noise(20_000)}, path)
    shutil.rmtree(path.parent)
    go.set()
    with pytest.raises(FileNotFoundError) as caught:
        saved.wait()
    assert str(caught.value) == f"[Errno 2] No such file or directory: '{path}'"


def test_ctrl_c_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, "copy_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pinning.save_file_async({"a": noise(100)}, tmp_path / "a")
    assert not [*tmp_path.iterdir()]
    assert not order._pending


@pytest.mark.parametrize("quick", [False, True])
def test_ctrl_c_after_the_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: threading.Event, quick: bool
) -> None:
    """The file is complete, or there is none, whichever of the queue and Ctrl-C is first."""
    submit = saving.complete_in_turn
    pinning.save_file_async({"a": noise(20_000)}, tmp_path / "before")  # the queue completes it first
    if quick:
        go.set()

    def interrupted(*arguments: Any) -> None:
        event = submit(*arguments)
        if quick:
            event.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, "complete_in_turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pinning.save_file_async({"a": noise(100)}, tmp_path / "a")
    go.set()
    assert eventually(lambda: not order._pending)
    assert sorted(each.name for each in tmp_path.iterdir()) == (["a", "before"] if quick else ["before"])


def test_the_end_of_the_program_waits(tmp_path: Path) -> None:
    program = f"""
import time
import numpy, pinning
from pinning.files import save
complete = save._Saving.complete
def late(self):
    time.sleep(0.5)
    complete(self)
save._Saving.complete = late
pinning.save_file_async({{"a": numpy.arange(1000)}}, {str(tmp_path / "a")!r})
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)
    assert (load(tmp_path / "a")["a"] == numpy.arange(1000)).all()
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_save_by_the_last_handler_at_exit(tmp_path: Path) -> None:
    program = f"""
import atexit
def last():
    import numpy
    pinning.save_file_async({{"a": numpy.arange(1000)}}, {str(tmp_path / "a")!r})
atexit.register(last)
import pinning  # whose own handlers are called before
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)
    assert (load(tmp_path / "a")["a"] == numpy.arange(1000)).all()
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


OFTEN_INTERRUPTED = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
int calls;
int fallocate(int file, int mode, long offset, long size) {
  if (calls++ % 2) return syscall(SYS_fallocate, file, mode, offset, size);
  errno = EINTR;
  return -1;
}
int fallocate64(int, int, long, long) __attribute__((alias("fallocate")));
"""


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder whose files are written through a mapping."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_signal_while_its_blocks_are_allocated(
    tmp_path: Path, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler: apt-get install gcc")
    source, library = tmp_path / "interrupted.c", tmp_path / "interrupted.so"
    source.write_text(OFTEN_INTERRUPTED)
    subprocess.run([compiler, "-shared", "-fPIC", "-w", source, "-o", library], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    program = f"""
import ctypes
import numpy, pinning
for folder in ({str(in_memory)!r}, {str(tmp_path)!r}):  # two calls, of which the first fails, and one that fails
    pinning.save_file({{"a": numpy.arange(1000)}}, folder + "/a")
assert ctypes.c_int.in_dll(ctypes.CDLL(None), "calls").value, "it has allocated none"
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)
    for folder in (tmp_path, in_memory):
        assert (load(folder / "a")["a"] == numpy.arange(1000)).all()


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """The old file stays at the path."""
    (tmp_path / "a").write_bytes(b"as it was")
    program = f"""
import os, signal
import numpy, pinning
from pinning.files import save
save._Saving.complete = lambda self: os.kill(os.getpid(), signal.SIGKILL)
pinning.save_file_async({{"a": numpy.arange(1000)}}, {str(tmp_path / "a")!r}).wait()
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"as it was"


def test_a_fork_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    complete = saving._Saving.complete

    def late(self: object) -> None:
        go.wait(600)
        complete(self)  # type: ignore[arg-type]

    def child() -> None:
        assert not order._pending
        monkeypatch.setattr(saving._Saving, "complete", complete)
        pinning.save_file_async({"a": numpy.arange(5)}, tmp_path / "child").wait()
        with pytest.raises(pinning.PinningError, match="fork"):
            event.wait()

    monkeypatch.setattr(saving._Saving, "complete", late)
    event = pinning.save_file_async({"a": numpy.arange(5)}, tmp_path / "a")
    try:
        run_in_child(child)
    finally:
        go.set()
    event.wait()
    for name in ("a", "child"):
        assert (load(tmp_path / name)["a"] == numpy.arange(5)).all()


@pytest.mark.parametrize("folder", ["/dev/shm", None])
@pytest.mark.parametrize("fsync", [False, True])
def test_file_systems(tmp_path: Path, folder: str | None, fsync: bool) -> None:
    """File systems in memory and on a disk, through the page cache and past it, at unaligned offsets."""
    path = (Path(folder) if folder else tmp_path) / f"pinning-test-{os.getpid()}-{fsync}"
    arrays = {f"{size}": noise(size, size) for size in (0, 1, 4095, 4097, 70_001, (9 << 20) + 5, 33 << 20)}
    try:
        pinning.save_file(arrays, path, fsync=fsync)
        found = load(path)
        assert all((found[name] == array).all() for name, array in arrays.items())
        data = path.read_bytes()
        assert all(array.tobytes() in data for name, array in arrays.items() if int(name) < 1 << 20)
    finally:
        path.unlink(missing_ok=True)

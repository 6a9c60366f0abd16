# SPDX-License-Identifier: Apache-2.0
"""Arenas that processes share by name; those that killed processes have left behind are reused or removed."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

import pinning
from child_process import in_a_small_file_system, run_in_child
from fake_device import Background, FakeDevice
from pinning import Arena, InvalidRangeError, PinningError, PoolLimitError, VendorError
from pinning.arena import abandoned, names, remove_abandoned
from pinning.arena.names import FOLDER
from pinning.runtime.process import run_deferred

WAIT = 60
PAGE = 4096
SIZE = 4 * PAGE + 5


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of names for this test alone: making an arena removes all abandoned ones in the folder."""
    with TemporaryDirectory(dir=FOLDER) as folder:
        monkeypatch.setattr(names, "FOLDER", Path(folder))
        yield Path(folder)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A unique name, whose file must be gone after the test."""
    name = f"test-{os.getpid()}-{request.node.name}"
    yield name
    gc.collect()
    run_deferred()
    assert not file_of(name).exists()


def file_of(name: str) -> Path:
    return names.FOLDER / f"pinning-arena.{name}"


def in_the_folder(program: str) -> list[str]:
    """The command that runs a program with the same folder of names as this test."""
    there = f"import pathlib; from pinning.arena import names; names.FOLDER = pathlib.Path({str(names.FOLDER)!r})"
    return [sys.executable, "-W", "error", "-c", f"{there}\n{program}"]


class Other:
    """Another process with an arena of this name."""

    def __init__(self, name: str, options: str = "", then: str = "") -> None:
        program = f"""
import sys
import pinning
arena = pinning.Arena({SIZE}, [], name={name!r}, {options})
{then}
print("there", flush=True)
sys.stdin.read()
arena.close()
"""
        self.process = subprocess.Popen(
            in_the_folder(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        assert self.said == "there\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=WAIT)

    def end(self) -> None:
        self.process.communicate("", timeout=WAIT)
        assert self.process.returncode == 0


def test_two_processes_have_the_same_bytes(name: str, device: FakeDevice) -> None:
    with Arena(SIZE, device, name=name) as arena:
        assert (arena.made, arena.name, file_of(name).stat().st_size) == (True, name, SIZE)
        assert file_of(name).stat().st_mode & 0o777 == 0o600
        arena.asarray()[10] = 9
        other = Other(name, then="assert not arena.made and arena.asarray()[10] == 9; arena.asarray()[11] = 8")
        assert arena.asarray()[11] == 8
        with Arena(SIZE, device, name=name) as again, pytest.raises(PinningError, match="that another arena made"):
            again.allocate(1)
        other.end()
        assert file_of(name).exists()
    assert not file_of(name).exists()


def test_the_last_one_out_removes_the_name(name: str, device: FakeDevice) -> None:
    arena = Arena(SIZE, device, name=name)
    other = Other(name)
    arena.close()
    with Arena(SIZE, device, name=name) as again:
        assert not again.made
        other.end()
        file_of(name).unlink()  # as an administrator may
        other = Other(name, then="assert arena.made")
    assert file_of(name).exists(), "it is another arena's by now"
    other.end()
    assert not file_of(name).exists()


def test_each_has_a_part(name: str, device: FakeDevice) -> None:
    with Arena(SIZE, device, name=name) as whole, Arena(SIZE, FakeDevice("fake:1"), name=name) as joined:
        assert joined.ptr != whole.ptr
        with pytest.raises(PinningError, match="part="):
            joined.allocate(10)
        other = FakeDevice("fake:2")
        with Arena(SIZE, other, name=name, part=slice(PAGE, 3 * PAGE)) as mine:
            mine.wait(timeout=WAIT)
            assert other.locked == {mine.ptr + PAGE: 2 * PAGE}
            assert (mine.nbytes, mine.available, mine.progress) == (SIZE, 2 * PAGE, 2 * PAGE)
            memory = mine.allocate(100)
            memory.asarray()[:] = 5
            assert (whole.asarray(100, offset=memory.ptr - mine.ptr) == 5).all()
            assert pinning.is_locked(memory, device=other)
            with pytest.raises(PoolLimitError, match=f"part of <Arena.*over its {2 * PAGE} bytes; .* a larger part=$"):
                mine.allocate(2 * PAGE)
            memory.free()
        refusing = FakeDevice("fake:3")
        refusing.fail(VendorError("fakeRegister", 1, "FAKE"))
        with Arena(SIZE, refusing, name=name, part=slice(PAGE, 3 * PAGE)) as mine, pytest.raises(VendorError):
            mine.wait(PAGE, timeout=WAIT)  # of the part


def test_a_name_with_another_size(name: str, device: FakeDevice) -> None:
    with Arena(SIZE, device, name=name):
        with pytest.raises(InvalidRangeError, match=f"nbytes is {SIZE + 1}, but the segment .* has {SIZE} bytes"):
            Arena(SIZE + 1, device, name=name)
        with pytest.raises(PinningError, match="which others use"):
            Arena(SIZE, device, name=name, create=True)
        with Arena(SIZE, device, name=name, create=False) as joined:
            assert not joined.made
    with pytest.raises(PinningError, match="there is no segment"):
        Arena(SIZE, device, name=name, create=False)
    with Arena(SIZE, device, name=name, create=True) as made:
        assert made.made


def test_what_is_no_segment(name: str, device: FakeDevice, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"important")
    file_of(name).symlink_to(tmp_path / "file")
    with pytest.raises(PinningError, match="cannot be used"):
        Arena(9, device, name=name)
    file_of(name).unlink()
    assert (tmp_path / "file").read_bytes() == b"important"


def test_a_file_of_another_user(name: str, device: FakeDevice) -> None:
    file_of(name).write_bytes(b"important")
    try:
        os.chown(file_of(name), 12345, 12345)
    except PermissionError:
        file_of(name).unlink()
        pytest.skip("needs to give a file to another user (root)")
    file_of(name).chmod(0o666)
    for create in (None, False, True):
        with pytest.raises(PinningError, match="belongs to another user"):
            Arena(9, device, name=name, create=create)
    assert file_of(name).read_bytes() == b"important"
    file_of(name).unlink()


def test_one_of_two_is_killed(name: str, device: FakeDevice) -> None:
    other = Other(name, then="arena.asarray()[:] = 3")
    arena = Arena(SIZE, device, name=name)
    other.kill()
    assert abandoned() == [each for each in abandoned() if each[0] != name]
    remove_abandoned()
    assert file_of(name).exists()
    assert (arena.asarray() == 3).all()
    arena.close()
    assert not file_of(name).exists()


def test_all_are_killed(name: str, device: FakeDevice) -> None:
    Other(name, then="arena.asarray()[:] = 3").kill()
    (left,) = [each for each in abandoned() if each[0] == name]
    assert left[1] >= SIZE
    with pytest.raises(InvalidRangeError, match="has"):
        Arena(SIZE + 1, device, name=name, create=False)
    assert file_of(name).exists()
    with Arena(SIZE, device, name=name, create=False) as arena:  # takes over what is left
        assert not arena.made
        assert (arena.asarray() == 3).all()
        Other(name, then="assert not arena.made").end()
    Other(name, then="arena.asarray()[:] = 3").kill()
    with Arena(2 * SIZE, device, name=name) as arena:  # begins anew
        assert arena.made
        assert not arena.asarray().any()
    Other(name).kill()
    with Arena(SIZE, device, name=name, create=True) as arena:
        assert arena.made


def test_a_name_that_is_removed_while_another_joins_is_made_anew(name: str, device: FakeDevice) -> None:
    file = file_of(name)
    with file.open("wb") as held:
        file.chmod(0o600)
        held.truncate(SIZE)
        fcntl.flock(held, fcntl.LOCK_EX)
        joining = Background(lambda: Arena(SIZE, device, name=name))
        joining.join(0.1)  # time to open the file and to wait for its lock
        file.unlink()
    with cast(Arena, joining.result()):
        assert file.stat().st_size == SIZE


def test_whoever_makes_the_next_one_removes_what_is_left(name: str, device: FakeDevice) -> None:
    Other(name).kill()
    assert file_of(name).exists()
    with Arena(SIZE, device, name=f"{name}-next"):
        assert not file_of(name).exists()


@pytest.mark.parametrize("devices", [[], ["host"]], ids=["unlocked", "locked"])
def test_many_come_and_go_at_once(name: str, devices: list[str]) -> None:
    program = f"""
import pinning
for turn in range(100):
    with pinning.Arena({SIZE}, {devices}, name={name!r}) as arena:
        arena.wait()
        assert arena.asarray()[0] in (0, 1)
        arena.asarray()[0] = 1
"""
    running = [subprocess.Popen(in_the_folder(program), stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert (process.returncode, said) == (0, "")
    assert not file_of(name).exists()


def test_a_child_has_it_for_itself(name: str, device: FakeDevice) -> None:
    """The parent leaves; the child's memory keeps its name until the child leaves too."""
    arena = Arena(SIZE, device, name=name)
    here, there = os.pipe(), os.pipe()

    def child() -> None:
        os.write(there[1], b".")
        os.read(here[0], 1)  # the parent has left
        assert file_of(name).exists()
        arena.asarray()[3] = 4
        os.write(there[1], b".")
        arena.close()
        assert not file_of(name).exists()

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(WAIT)
            child()
            code = 0
        finally:
            os._exit(code)
    os.read(there[0], 1)  # the child has begun
    arena.close()
    assert file_of(name).exists()
    os.write(here[1], b".")
    os.read(there[0], 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for end in (*here, *there):
        os.close(end)


def test_a_child_that_leaves_takes_nothing_away(name: str, device: FakeDevice) -> None:
    with Arena(SIZE, device, name=name) as arena:
        run_in_child(arena.close)
        assert file_of(name).exists()
        run_in_child(lambda: None)
        assert arena.asarray().size == SIZE


def test_arenas_that_do_not_both_fit() -> None:
    in_a_small_file_system("""
import os, pinning
with pinning.Arena(3 << 20, [], name="one", part=slice(0, 4096)) as one:
    for _ in range(2):
        try:
            pinning.Arena(3 << 20, [], name="two")
        except pinning.LockLimitError as error:
            assert "other arenas will still need" in str(error)
        else:
            raise SystemExit("both are made")
        assert os.listdir("/dev/shm") == ["pinning-arena.one"]
    with pinning.Arena(1 << 20, [], name="two") as two:
        one.wait(), two.wait()
with pinning.Arena(3 << 20, [], name="two") as two:
    two.wait()
    two.asarray()[:] = 1
""")


@pytest.mark.parametrize("devices", ["host", []])
def test_a_file_system_that_others_fill(devices: object) -> None:
    in_a_small_file_system(f"""
import pinning
with pinning.Arena(3 << 20, [], name="one", part=slice(0, 4096)):
    with open("/dev/shm/other", "wb") as file:
        file.write(bytes(2 << 20))
    with pinning.Arena(3 << 20, {devices!r}, name="one") as arena:
        try:
            arena.wait()
        except pinning.LockLimitError as error:
            assert "the file system /dev/shm has 4194304 bytes, of which 0 are free" in str(error), error
        else:
            raise SystemExit("nobody says that there is no room")
""")


def test_an_arena_without_devices_is_brought_in(name: str) -> None:
    with Arena(SIZE, [], name=name) as arena:
        arena.wait()
        assert file_of(name).stat().st_blocks * 512 >= SIZE
    with Arena(SIZE, [], shared=True) as arena:
        arena.wait()

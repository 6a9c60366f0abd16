# SPDX-License-Identifier: Apache-2.0
"""What a save keeps of the file that it replaces, and who can read the new one meanwhile."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import pinning
from child_process import run_in_child
from pinning.files import save as saving

TENSORS = {"a": numpy.arange(9)}
ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"


def save_async(tensors: Any, path: Path) -> None:
    pinning.save_file_async(tensors, path).wait()


SAVES: list[Callable[[Any, Path], None]] = [pinning.save_file, save_async]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach and change."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp"))  # a disk, where there are attributes
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"the file system refuses attributes: {name}: {error}")


def acl(user: int, mask: int, other: int) -> bytes:
    """The owner may read and write, the group read, the user 1234 as given; as the kernel stores it."""
    entries = [(1, 6, -1), (2, user, 1234), (4, 4, -1), (16, mask, -1), (32, other, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def state(path: Path) -> tuple[int, int, int, dict[str, bytes]]:
    status = path.stat()
    names = [name for name in os.listxattr(path) if name.startswith(("user.", "system."))]
    return status.st_mode, status.st_uid, status.st_gid, {name: os.getxattr(path, name) for name in names}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o664])
def test_a_file_that_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Any, Path], None], mode: int
) -> None:
    """Its mode, owner, group and attributes stay; until then only the owner can open the new one."""
    path, meanwhile = folder / "a", []
    write = saving._Saving.write

    def look(self: Any, *arguments: Any) -> Any:
        meanwhile.extend(stat.S_IMODE(each.stat().st_mode) for each in folder.glob(".*.part"))
        return write(self, *arguments)

    path.write_bytes(b"as it was")
    set_attribute(path, "user.kept", b"as it was")
    if os.getuid() == 0:
        os.chown(path, 1234, 1235)
    path.chmod(mode)
    before = state(path)
    monkeypatch.setattr(saving._Saving, "write", look)
    save(TENSORS, path)
    assert meanwhile == [0o600]
    assert state(path) == before
    assert pinning.load_file(path, "host", framework="numpy")["a"].tolist() == [*range(9)]
    assert [each.name for each in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("inherits", [False, True])
@pytest.mark.parametrize("has", [False, True])
def test_access_control_lists(folder: Path, has: bool, inherits: bool) -> None:
    """Of the file that is replaced, not of the folder for new files; a new file has the folder's."""
    path = folder / "a"
    path.touch(0o640)
    if has:
        set_attribute(path, ACL, acl(6, 6, 0))
    if inherits:
        set_attribute(folder, DEFAULT_ACL, acl(7, 7, 5))
    before = state(path)
    pinning.save_file(TENSORS, path)
    assert state(path) == before
    pinning.save_file(TENSORS, folder / "new")
    (folder / "usual").touch()
    assert state(folder / "new") == state(folder / "usual")


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0])
def test_a_new_file_has_the_usual_mode(folder: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        pinning.save_file(TENSORS, folder / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(("mode", "then"), [(0o600, 0o600), (0o640, 0o600), (0o664, 0o644), (0o4755, 0o755)])
def test_a_file_of_another_owner(folder: Path, mode: int, then: int) -> None:
    """What the group of the file may do is not allowed to that of the user who saves."""
    if os.getuid():
        pytest.skip("needs root, to save as another user")
    path = folder / "a"
    path.touch()
    path.chmod(mode)

    def child() -> None:
        os.setgroups([])
        os.setgid(1235)
        os.setuid(1234)
        pinning.save_file(TENSORS, path)

    run_in_child(child)
    status = path.stat()
    assert (status.st_uid, status.st_gid, oct(stat.S_IMODE(status.st_mode))) == (1234, 1235, oct(then))

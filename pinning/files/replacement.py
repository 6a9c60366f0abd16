# SPDX-License-Identifier: Apache-2.0
"""A file that is written beside its path, and replaces the one there when it is complete."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from pinning.errors import FileError
from pinning.files.file_work import OpenFile
from pinning.files.shards import AnyPath
from pinning.runtime.arguments import path_name

_ACL = "system.posix_acl_access"
_KEPT = ("user.", "system.", "security.selinux")  # extended attributes; others vouch for the old contents


class Replacement:
    """A new file for a path, or for the file to which that points now. Only its owner can open it until it is complete.

    `fsync`: `complete` waits until it is on the disk. Raises FileError if the path is that of something other than a
    regular file, and OSError for a folder that does not exist or links that form a loop.
    """

    def __init__(self, path: AnyPath, fsync: bool) -> None:
        self._path, self._fsync = path_name(path), fsync
        self.target: Path = _target(self._path)
        self._beside = _name_beside(self.target)
        self._file: OpenFile | None = None

    def create(self, nbytes: int) -> OpenFile:
        """Create the file, which will have `nbytes` bytes. The caller discards it if this fails, or Ctrl-C ends it."""
        self._file = OpenFile(self._beside, create=True)
        # If the disk is waited for, the page cache would only add a copy.
        self._file.prepare_to_write(nbytes, self._fsync)
        return self._file

    def complete(self) -> None:
        """Replace the file at the path. What fails after the rename is the `fsync` of the folder alone."""
        assert self._file is not None
        folder = os.open(self.target.parent, os.O_RDONLY | os.O_DIRECTORY) if self._fsync else None
        try:
            _make_like_target(self._file.fileno(), self.target)
            if self._fsync:
                os.fsync(self._file.fileno())
            self._file.close()
            self._beside.replace(self.target)
            if folder is not None:
                os.fsync(folder)
        finally:
            if folder is not None:
                os.close(folder)

    def discard(self, error: BaseException) -> None:
        """Remove the new file, after an error, which then names the path that the caller gave."""
        if self._file is not None:
            self._file.close()
        with suppress(OSError):
            self._beside.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            named = Path(str(error.filename or self._beside))
            if named.suffix == self._beside.suffix and named.parent == self._beside.parent:
                error.filename = self._path


def _target(path: str) -> Path:
    try:
        status = os.stat(path)  # noqa: PTH116, because of `file/` Path would make `file`
    except FileNotFoundError:
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            raise FileError(errno.EISDIR, "it names a folder; give the path of a file", path) from None
        if not Path(folder).is_dir():  # realpath would make one up
            raise
    else:
        if stat.S_ISDIR(status.st_mode):
            raise FileError(errno.EISDIR, "it is a folder; give the path of a file", path)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(errno.EINVAL, "it is not a regular file, and would be replaced by one", path)
    return Path(os.path.realpath(path))


def _name_beside(target: Path) -> Path:
    stem = os.fsencode(target.name)[:100].decode("utf-8", "ignore")  # names are limited to 255 bytes, not characters
    return target.with_name(f".{stem}.{secrets.token_hex(8)}.part")


def _make_like_target(file: int, target: Path) -> None:
    """Copy what is kept of the file at the path; of one that does not exist, what a new file there has."""
    try:
        return _make_like(file, target)
    except FileNotFoundError:
        pass
    new = _name_beside(target)
    try:
        new.touch(0o666, exist_ok=False)  # the kernel applies the umask, or the ACL for new files in this folder
        _make_like(file, new)
    finally:
        new.unlink(missing_ok=True)


def _make_like(file: int, model: Path) -> None:
    """Copy owner, group, extended attributes and mode, as far as allowed; no user or group gets more than before."""
    wanted = model.stat()
    mode, keeps_group = stat.S_IMODE(wanted.st_mode), True
    try:
        os.fchown(file, wanted.st_uid, wanted.st_gid)
    except OSError:
        mode &= 0o777  # a file of another owner is executed with that owner's rights
        try:
            os.fchown(file, -1, wanted.st_gid)
        except OSError:
            keeps_group = False
    names = _attributes_of(model)
    for name in names:
        if name.startswith(_KEPT) and (name != _ACL or keeps_group):
            try:
                os.setxattr(file, name, os.getxattr(model, name))
            except OSError:
                keeps_group = keeps_group and name != _ACL
    if _ACL not in names or not keeps_group:
        with suppress(OSError):  # there may be one of the folder, for new files
            os.removexattr(file, _ACL)
    if not keeps_group:
        mode = mode & 0o707 | (mode & 0o007) << 3  # the rights of a group with other members
    if stat.S_IMODE(os.fstat(file).st_mode) != mode:
        os.fchmod(file, mode)


def _attributes_of(file: Path) -> list[str]:
    try:
        return os.listxattr(file)
    except OSError:  # the file system has none
        return []

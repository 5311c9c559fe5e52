"""Creates files and directories that only their owner can read, since they hold other people's messages."""

from __future__ import annotations

import contextlib
from pathlib import Path

OWNERS_UMASK = 0o077
"""What a process of ours takes from the permissions of every file that it makes."""


def private_file(path: Path | str) -> None:
    """Make an empty file of mode 0600 with its directory, of mode 0700; a file that is there keeps its content and
    becomes 0600, unless it belongs to somebody else. Raises ``OSError`` when it cannot be made."""
    file = Path(path)
    if not file.parent.is_dir():
        private_directory(file.parent)
    file.touch(mode=0o600, exist_ok=True)
    _restrict(file, 0o600)


def private_directory(path: Path | str) -> None:
    """Make a directory of mode 0700, or give one that is there this mode, unless it belongs to somebody else; for
    directories whose content is ours alone. Raises ``OSError`` when it cannot be made."""
    directory = Path(path)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _restrict(directory, 0o700)


def _restrict(path: Path, mode: int) -> None:
    """Take from a path what ``mode`` does not allow."""
    with contextlib.suppress(PermissionError):  # another user's
        found = path.stat().st_mode & 0o777
        if found & ~mode:
            path.chmod(found & mode)

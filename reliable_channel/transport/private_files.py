"""Creates files and directories that only their owner can read, since they hold other people's messages, replaces files
as a whole, and reads keys."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from reliable_channel.core.errors import ConfigurationError

OWNERS_UMASK = 0o077
"""The umask of this project's processes."""


def private_file(path: Path | str) -> None:
    """Create an empty file of mode 0600 with its directory, of mode 0700. An existing file keeps its content and
    becomes 0600, unless it belongs to another user. Raises ``OSError`` when it cannot be created."""
    file = Path(path)
    if not file.parent.is_dir():
        private_directory(file.parent)
    file.touch(mode=0o600, exist_ok=True)
    _restrict(file, 0o600)


def private_directory(path: Path | str) -> None:
    """Create a directory of mode 0700, or set this mode on an existing one, unless it belongs to another user; for
    directories that only this project uses. Raises ``OSError`` when it cannot be created."""
    directory = Path(path)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _restrict(directory, 0o700)


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file as a whole: whoever reads it, also after a crash or a power cut, finds the old text
    or the new one. Raises ``OSError``, and leaves the old one then."""
    fresh = path.with_suffix(".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut may leave an empty file under the name
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def read_secret(name: Path | str) -> bytes:
    """The bytes of a key, from the file of that name or, for ``env:NAME``, an environment variable. Raises
    ``ConfigurationError`` with the name."""
    variable = str(name).removeprefix("env:")
    try:
        return Path(name).read_bytes() if variable == str(name) else os.environb[os.fsencode(variable)]
    except OSError as error:
        reason = error.strerror
    except KeyError:
        reason = "the variable is not set"
    raise ConfigurationError(
        f"The key in {name} cannot be read: {reason}.", "Name a file, or env: with the name of an environment variable."
    )


def _restrict(path: Path, mode: int) -> None:
    """Remove the permissions of a path that ``mode`` does not allow."""
    with contextlib.suppress(PermissionError):  # another user's
        mode_now = path.stat().st_mode & 0o777
        if mode_now & ~mode:
            path.chmod(mode_now & mode)

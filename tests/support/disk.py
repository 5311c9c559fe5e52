"""A small disk of its own (a tmpfs), and filling it; and a bound for the files of this process, which needs no disk."""

from __future__ import annotations

import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_BALLAST = bytes(1 << 20)


@contextmanager
def small_disk_at(directory: Path, megabytes: int) -> Iterator[bool]:
    """Mount a disk of that size on ``directory`` for the block; yields whether that is allowed here (it takes root)."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    mounted = (
        shutil.which("mount") is not None and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within the block no file of this process grows beyond ``size`` bytes: writing more fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    """Not a byte of room on the disk of ``directory``; what is given back meanwhile is taken at once (state stores lay
    out their files with megabytes to spare, which was once enough for the rest of a run)."""
    ballast, over = directory / "ballast", threading.Event()

    def take_all(file: BinaryIO) -> None:
        with suppress(OSError):
            while file.write(_BALLAST):
                pass

    def keep_taking(file: BinaryIO) -> None:
        while not over.wait(0.001):
            take_all(file)

    with ballast.open("wb", buffering=0) as file:
        take_all(file)
        taker = threading.Thread(target=keep_taking, args=(file,))
        taker.start()
        try:
            yield
        finally:
            over.set()
            taker.join()
    ballast.unlink()

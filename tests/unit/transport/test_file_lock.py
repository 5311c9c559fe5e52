"""The lock of a file."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliable_channel.transport.file_lock import FileLock


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_release_a_lock_at_once_all_return(tmp_path: Path, eager_threads: None) -> None:
    """One of them failed with *I/O operation on closed file*: a bridge that two threads stop."""
    failures: list[Exception] = []
    for _ in range(200):
        lock, start = FileLock(tmp_path / "a.lock"), threading.Barrier(4)

        def release(lock: FileLock = lock, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                lock.release()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_later_note_replaces_the_earlier_one(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "a.lock")
    lock.note("123456")
    lock.note("42")
    assert (tmp_path / "a.lock").read_text() == "42"
    lock.release()
    lock.release()

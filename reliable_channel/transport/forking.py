"""Keeps a process that was forked (``os.fork``, ``multiprocessing``, servers with workers) from using what its parent
has opened: there its threads do not run, and SQLite forbids the use of a connection."""

from __future__ import annotations

import os

from reliable_channel.core.errors import LocalError


class ForkedError(LocalError):
    """A channel, node or database of the process from which this one was forked."""


class OwnerProcess:
    """The process that made an object, for the object to tell when it is used in a fork."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._id

    def refuse_fork(self) -> None:
        """Raise :class:`ForkedError` in any other process."""
        if not self.is_current:
            raise ForkedError(
                f"Process {self._id} has opened this, and process {os.getpid()} was forked from it.",
                "Open nodes and channels after the fork, in each process under its own sender id and database.",
            )

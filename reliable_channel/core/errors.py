"""Defines the error tree of the whole project. Every package may import it; it imports none.

::

    ReliableChannelError
    ├── LocalError            the caller misused us; fix the call
    │   ├── ConfigurationError    a setting is wrong, named by its key
    │   ├── MessageTooLarge
    │   └── …
    └── EnvironmentFault      this machine or a peer: Java missing, port taken, disk full, broker unreachable

Invalid data from the *network* never raises an exception: it becomes a
:class:`reliable_channel.core.wire.malformed.Malformed` value and, in the pipeline, a quarantine row.
"""

from __future__ import annotations


class ReliableChannelError(Exception):
    """Base of all errors of this package: one sentence with the cause, one with the remedy.

    Survives pickling (executors send errors to the driver).
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".strip()


class LocalError(ReliableChannelError):
    """The caller misused the API; nothing on the network is wrong."""


class ConfigurationError(LocalError):
    """A configuration key or value is wrong; the cause names the key, never the value of a secret."""


class MessageTooLarge(LocalError):
    """A message exceeds the configured limit; the cause states both sizes in bytes."""


class EmptyMessage(LocalError):
    """An empty payload cannot be sent, because on the wire it would be a sync message."""


class EnvironmentFault(ReliableChannelError):
    """Something outside this process is missing, busy, full or unreachable."""

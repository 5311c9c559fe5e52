"""Defines the errors of the channel API, part of the tree in :mod:`reliable_channel.core.errors`.

::

    LocalError
    ├── ChannelClosedError         the handle was closed
    ├── ChannelNotStartedError     send before start()
    ├── ChannelExistsError         this sender has this channel open already, in this process
    ├── IncompleteEncryptionError  a hook without both encrypt and decrypt
    └── ChangedConfigurationError  the journal of a killed process was written under another configuration
    EnvironmentFault
    ├── SenderLocked               another process uses this sender and database
    └── DamagedStore               the database holds bytes that are no snapshot or journal of ours
"""

from __future__ import annotations

from reliable_channel.core.errors import EnvironmentFault, LocalError


class ChannelClosedError(LocalError):
    """The channel handle was closed; open the channel again."""


class ChannelNotStartedError(LocalError):
    """The channel is stopped: ``start()`` it first."""


class ChannelExistsError(LocalError):
    """This process has the same channel open for the same sender already."""


class IncompleteEncryptionError(LocalError):
    """An encryption must give both ``encrypt`` and ``decrypt`` (RELIABLE-CHANNEL-API)."""


class ChangedConfigurationError(LocalError):
    """A killed process left its journal under another configuration or version of this program."""


def make_version_error(channel_id: str, sender_id: str) -> ChangedConfigurationError:
    """The error for the journal of a killed process whose program was another version: a replay under other rules would
    not produce the messages that process sent."""
    return ChangedConfigurationError(
        "The process before this one did not stop cleanly, and was of another version of this program:"
        f" channel {channel_id!r} of sender {sender_id!r}.",
        "Open and close the channel with that version, then upgrade:"
        " `reliable-channel listen CHANNEL --sender SENDER --seconds 1` (docs/howto/upgrade.md).",
    )


class SenderLocked(EnvironmentFault):
    """Another process uses this sender id and database; two would reuse each other's clock values."""


class DamagedStore(EnvironmentFault):
    """The persisted state cannot be read."""

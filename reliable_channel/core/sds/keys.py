"""Defines the keys under which messages are kept that do not own their SDS ids.

A message that owns its id is kept under the id as it is on the wire, a ``str``. A further send of an id and an unproven
message are kept under a :class:`SendKey`. Because that is another type, no id in a history, repair request or filter
can address one: with a text of some reserved form, two small envelopes could make a message wait for itself.
"""

from __future__ import annotations

from typing import NamedTuple


class SendKey(NamedTuple):
    """One send of an SDS id: the id, its sender and its Lamport timestamp."""

    sds_id: str
    sender_id: str
    lamport: int


Key = str | SendKey
"""The key of a message: its SDS id if it owns it, else a :class:`SendKey`."""


def sds_id_of(key: Key) -> str:
    """The SDS id of the message with this key."""
    return key if isinstance(key, str) else key.sds_id


_MARK = "\x00"


def text_of(key: Key) -> str:
    """Encode a key as text, for memory and storage that hold texts; :func:`sds_id_of_text` reads it. No two keys have
    the same text: an id that begins like an encoded key is encoded itself."""
    if isinstance(key, str):
        return key if not key.startswith(_MARK) else f"{_MARK}{len(key)}{_MARK}{key}"
    return f"{_MARK}{len(key.sds_id)}{_MARK}{key.sds_id}{key.lamport}{_MARK}{key.sender_id}"


def sds_id_of_text(text: str) -> str:
    """The SDS id of the message whose key has this text."""
    if not text.startswith(_MARK):
        return text
    length, _, rest = text[1:].partition(_MARK)
    return rest[: int(length)]

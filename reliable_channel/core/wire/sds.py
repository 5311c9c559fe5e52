"""Encodes and decodes SDS messages (LIP-109) in the ``spec`` and ``nim`` wire families, and classifies them.

Messages and their entries are values. They are not ``frozen``, for the reason given in ``core/sds/events.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from google.protobuf.message import DecodeError

from reliable_channel.core.wire._pb import sds_pb2 as pb
from reliable_channel.core.wire.framing import field
from reliable_channel.core.wire.malformed import Malformed, Reason

MAX_HISTORY_ENTRIES = 1_000
MAX_ID_CHARACTERS = 1_024
"""Ids are opaque; this bound only prevents a hostile id from filling a table. It applies to a message's own ids and to
the ids and sender ids in its causal history and repair requests."""
MAX_HINT_BYTES = 1_024
"""Retrieval hints are opaque too: js-waku writes 32 bytes, status-go a protobuf of several hashes."""


class WireFamily(StrEnum):
    """The message layout of a channel. The families cannot read each other: no message that an encoder of one writes is
    valid in the other."""

    SPEC = "spec"
    NIM = "nim"


class HistoryLayout(StrEnum):
    """How the nim family writes a causal history. Both are read; nim-sds reads only what it writes."""

    ENTRIES = "entries"
    """As nim-sds 0.3.0 and its master branch, which logos-delivery pins."""
    IDS = "ids"
    """As releases 0.2, 0.3.3 and 0.4: ids, and in a field of their own the entries of those with a hint or sender."""


class SdsKind(StrEnum):
    """The kind of an SDS message, determined by the presence of timestamp and content (LIP-109)."""

    CONTENT = "content"
    SYNC = "sync"
    EPHEMERAL = "ephemeral"


_Proto = pb.SpecMessage | pb.NimMessage | pb.NimIdsMessage
_LAYOUTS: dict[WireFamily, tuple[type[_Proto], ...]] = {
    WireFamily.SPEC: (pb.SpecMessage,),
    WireFamily.NIM: (pb.NimMessage, pb.NimIdsMessage),
}
"""The layouts of a family, tried one after the other. A history is valid in one of them only: an id without control
characters is not the encoding of an entry that has an id."""
_NIM, _CONTENT, _SYNC, _EPHEMERAL = WireFamily.NIM, SdsKind.CONTENT, SdsKind.SYNC, SdsKind.EPHEMERAL
"""Looked up once, because access to an enumeration member costs as much as three function calls."""


@dataclass(slots=True, unsafe_hash=True)
class HistoryEntry:
    """A reference to another message: its id and, where known, the hash of its newest envelope and its sender. ``None``
    means absent; an empty value from a peer means the same."""

    message_id: str
    retrieval_hint: bytes | None = None
    sender_id: str | None = None


@dataclass(slots=True, unsafe_hash=True)
class SdsMessage:
    """One SDS message, of either family. ``bloom_filter`` is the field's bytes on the wire."""

    sender_id: str
    message_id: str
    channel_id: str
    lamport_timestamp: int | None = None
    causal_history: tuple[HistoryEntry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[HistoryEntry, ...] = ()
    content: bytes | None = None

    @property
    def kind(self) -> SdsKind | None:
        """The kind, or ``None`` for a message with neither timestamp nor content, which is invalid. Empty content
        counts as absent (``nim`` always writes the field)."""
        if self.lamport_timestamp is not None:
            return _CONTENT if self.content else _SYNC
        return _EPHEMERAL if self.content else None


def encode_sds_message(
    message: SdsMessage, family: WireFamily = WireFamily.SPEC, layout: HistoryLayout = HistoryLayout.ENTRIES
) -> bytes:
    """Serialize an SDS message in the given wire family; ``layout`` is that of the nim family's histories."""
    history = [_write_entry(entry) for entry in message.causal_history]
    repair = [_write_entry(entry) for entry in message.repair_request]
    bloom_filter, content = message.bloom_filter, message.content
    if family is _NIM:
        of_layout: type[pb.NimMessage | pb.NimIdsMessage] = pb.NimMessage
        named: Any = history
        detailed: list[pb.HistoryEntry] = []
        if layout is HistoryLayout.IDS:
            of_layout, named = pb.NimIdsMessage, [entry.message_id for entry in message.causal_history]
            detailed = [entry for entry in history if entry.retrieval_hint or entry.sender_id]
        start = of_layout(
            message_id=message.message_id,
            lamport_timestamp=message.lamport_timestamp or 0,
            causal_history=named,
            channel_id=message.channel_id,
        )
        end = pb.NimIdsMessage(sender_id=message.sender_id, causal_history_entries=detailed, repair_request=repair)
        # Written even if empty, as nim-sds does.
        large = (*field(5, content or b""), *field(6, bloom_filter or b""))
        return b"".join((start.SerializeToString(), *large, end.SerializeToString()))
    head = pb.SpecMessage(
        sender_id=message.sender_id,
        message_id=message.message_id,
        channel_id=message.channel_id,
        lamport_timestamp=message.lamport_timestamp,
        causal_history=history,
    )
    parts = [head.SerializeToString()]
    if bloom_filter is not None:
        parts += field(12, bloom_filter)
    if repair:
        parts.append(pb.SpecMessage(repair_request=repair).SerializeToString())
    if content is not None:
        parts += field(20, content)
    return b"".join(parts)


def decode_sds_message(data: bytes, family: WireFamily = WireFamily.SPEC) -> SdsMessage | Malformed:
    """Parse and validate an SDS message of the given family, or return why it is malformed (docs/spec/sds.md,
    *Bounds*). A message of the other family is named as such: nothing is lost for good, a setting is wrong."""
    message = _decode(data, family)
    if isinstance(message, Malformed):
        other = WireFamily.SPEC if family is _NIM else _NIM
        if isinstance(_decode(data, other), SdsMessage):
            remedy = f"set family: {other.value} for its content topic in channels.content_topics"
            return Malformed(Reason.OTHER_FAMILY, f"a message of the {other.value} family; {remedy}")
    return message


def decode_in_families(data: bytes, families: Sequence[WireFamily]) -> tuple[WireFamily, SdsMessage] | Malformed:
    """Parse and validate an SDS message of any of these families: the first in which it is valid, and the message. So
    the result depends on the bytes alone, also for bytes that somebody made valid in two. If it is valid in none,
    the reason of the family that could read most of it."""
    if len(families) == 1:
        message = decode_sds_message(data, families[0])
        return message if isinstance(message, Malformed) else (families[0], message)
    reasons = []
    for family in families:
        message = _decode(data, family)
        if isinstance(message, SdsMessage):
            return family, message
        reasons.append(message)
    return max(reasons, key=lambda why: _LITTLE_READ.get(why.reason, 2))


_LITTLE_READ = {Reason.MALFORMED_SDS: 0, Reason.SDS_WITHOUT_ID: 1}
"""The reasons that bytes of another family have too."""


def _decode(data: bytes, family: WireFamily) -> SdsMessage | Malformed:
    reasons = []
    for layout in _LAYOUTS[family]:
        try:
            message = _validate(layout.FromString(data), family)
        except DecodeError as error:
            message = Malformed(Reason.MALFORMED_SDS, str(error)[:200])
        if isinstance(message, SdsMessage):
            return message
        reasons.append(message)
    return reasons[0]


def _validate(proto: _Proto, family: WireFamily) -> SdsMessage | Malformed:
    # Every access to a field creates a new object, so each field is read once, which saves a quarter of the decoding
    # time.
    message_id, sender_id, channel_id = proto.message_id, proto.sender_id, proto.channel_id
    # Older builds of nim-sds have no sender id: all such messages belong to one sender with an empty name.
    if not message_id or (not sender_id and family is not _NIM):
        return Malformed(Reason.SDS_WITHOUT_ID, "an SDS message needs a message id and a sender id")
    if not channel_id:
        return Malformed(Reason.SDS_WITHOUT_CHANNEL, "an SDS message needs a channel id")
    if max(len(message_id), len(sender_id), len(channel_id)) > MAX_ID_CHARACTERS:
        own = {"message_id": message_id, "sender_id": sender_id, "channel_id": channel_id}
        name = next(name for name, value in own.items() if len(value) > MAX_ID_CHARACTERS)
        return Malformed(Reason.MALFORMED_SDS, f"{name} is longer than {MAX_ID_CHARACTERS} characters")
    history, repair = proto.causal_history, proto.repair_request
    if len(history) > MAX_HISTORY_ENTRIES or len(repair) > MAX_HISTORY_ENTRIES:
        return Malformed(Reason.SDS_HISTORY_TOO_LONG, f"more than {MAX_HISTORY_ENTRIES} history entries")
    named, wanted = _read_history(proto), tuple(map(_read_entry, repair))
    bad = _find_bad_entry("causal_history", named, family) or _find_bad_entry("repair_request", wanted, family)
    if bad:
        return Malformed(Reason.MALFORMED_SDS, bad)
    content = proto.content
    message = SdsMessage(
        sender_id,
        message_id,
        channel_id,
        _read_lamport(proto, family),
        named,
        proto.bloom_filter or None,
        wanted,
        content if content or proto.HasField("content") else None,
    )
    if message.kind is None:
        return Malformed(Reason.SDS_INVALID_KIND, "neither a Lamport timestamp nor content")
    return message


def _find_bad_entry(name: str, entries: tuple[HistoryEntry, ...], family: WireFamily) -> str | None:
    """Describe which part of an entry is longer than allowed, or missing; ``None`` if none is."""
    for entry in entries:
        hint, sender_id = entry.retrieval_hint, entry.sender_id
        if family is _NIM and not entry.message_id:
            return f"{name} holds an entry without an id"
        if len(entry.message_id) > MAX_ID_CHARACTERS or (sender_id and len(sender_id) > MAX_ID_CHARACTERS):
            return f"{name} holds an id of more than {MAX_ID_CHARACTERS} characters"
        if hint and len(hint) > MAX_HINT_BYTES:
            return f"{name} holds a retrieval hint of more than {MAX_HINT_BYTES} bytes"
    return None


def _read_lamport(proto: _Proto, family: WireFamily) -> int | None:
    """Read the timestamp. ``nim`` always writes the field, so zero means absent."""
    if not proto.HasField("lamport_timestamp"):
        return None
    value: int = proto.lamport_timestamp
    return None if family is _NIM and value == 0 else value


def _write_entry(entry: HistoryEntry) -> pb.HistoryEntry:
    return pb.HistoryEntry(message_id=entry.message_id, retrieval_hint=entry.retrieval_hint, sender_id=entry.sender_id)


def _read_entry(entry: pb.HistoryEntry) -> HistoryEntry:
    hint, sender_id = entry.retrieval_hint, entry.sender_id
    return HistoryEntry(
        entry.message_id,
        hint if hint or entry.HasField("retrieval_hint") else None,
        sender_id if sender_id or entry.HasField("sender_id") else None,
    )


def _read_history(proto: _Proto) -> tuple[HistoryEntry, ...]:
    """Read the causal history. A list of ids is complete; the entries beside it add hints and senders to some."""
    if isinstance(proto, pb.NimIdsMessage):
        entries = {entry.message_id: _read_entry(entry) for entry in proto.causal_history_entries}
        return tuple(entries.get(each) or HistoryEntry(each) for each in proto.causal_history)
    return tuple(map(_read_entry, proto.causal_history))

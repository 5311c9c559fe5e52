"""Records everything that happens on the simulated network; the truth is computed from these records alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from reliable_channel.simulation.scenario import ChannelPlan, Fault
from reliable_channel.simulation.scene import Forgery


@dataclass(frozen=True, slots=True)
class SentSds:
    """One SDS message as its sender first made it. ``ordinal`` counts the segments of a message as sent (data, then
    parity) and ``message`` is the application message's number; both are ``None`` for a sync message."""

    sds_id: str
    sender: str
    lamport: int | None
    history: tuple[str, ...]
    made_at_ms: int
    message: int | None = None
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One application message as handed to its participant. ``sds_ids`` are its segments as sent: data, then parity."""

    number: int
    sender: str
    sent_at_ms: int
    payload: bytes
    ephemeral: bool
    data_count: int
    parity_count: int
    sds_ids: tuple[str, ...]
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class EnvelopeDispatch:
    """One envelope put on the network: the first, a retransmission, or a participant's repair. Time in virtual Unix
    ms."""

    sds_id: str
    by: str
    at_ms: int
    envelope_hash: bytes


@dataclass(frozen=True, slots=True)
class ObserverRecord:
    """One record as it reaches the observer's Kafka topic. ``sds_id`` is ``None`` if the record is not an SDS message
    of an honest participant; ``reason`` is the quarantine reason expected for it, ``None`` when it can be decoded."""

    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    sds_id: str | None = None
    reason: str | None = None
    label: str = ""
    forgery: Forgery | None = None
    """The attack, if the record is one; ``sds_id`` is then ``None``."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An envelope that a store node keeps, and the SDS message in it."""

    sds_id: str
    data: bytes


@dataclass(slots=True)
class ChannelJournal:
    """Everything that happened on one channel. ``heard[(participant, sds id)]`` is when that participant first got
    the message (its own when it made it), in virtual Unix ms."""

    plan: ChannelPlan
    messages: dict[int, SentMessage] = field(default_factory=dict)
    sds: dict[str, SentSds] = field(default_factory=dict)
    dispatches: list[EnvelopeDispatch] = field(default_factory=list)
    withheld: list[EnvelopeDispatch] = field(default_factory=list)
    """The messages that a fault withheld from the network."""
    stored: dict[str, dict[bytes, Stored]] = field(default_factory=dict)
    """Store node → envelope hash (32 bytes) → the stored envelope of the channel."""
    observed: list[ObserverRecord] = field(default_factory=list)
    heard: dict[tuple[str, str], int] = field(default_factory=dict)
    delivered: dict[tuple[str, str], int] = field(default_factory=dict)
    """(participant, sds id) → when SDS delivered the message to it; participants of this implementation only."""
    joined: dict[str, int] = field(default_factory=dict)
    """Participant → since when it is on the channel."""
    confirmed: dict[int, int] = field(default_factory=dict)
    """Message number → when its sender learned that enough recipients have it."""
    failed: dict[int, int] = field(default_factory=dict)
    """Message number → when its sender gave up (send error)."""

"""Holds the contents of the tables, and how they differ from the truth, as plain values: the one form in which they
are compared, printed and plotted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """A row of ``delivered_messages``. ``lamport`` and ``first_sds_id`` are the causal position (of the first segment
    as sent), ``None`` for an ephemeral message; ``payload`` is ``None`` where plaintext is not stored."""

    channel_id: str
    sender: str
    payload: bytes | None
    lamport: int | None
    first_sds_id: str
    delivery_seq: int
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class DeliveredSegment:
    """A row of ``deliveries`` that is a segment or a bare payload: row ``row_seq`` of its channel."""

    channel_id: str
    sds_id: str
    row_seq: int
    late: bool = False
    repaired: bool = False
    lost_dependencies: tuple[str, ...] = ()
    sender: str = ""


@dataclass(frozen=True, slots=True)
class IncompleteMessage:
    """A row of ``incomplete_messages``: what a given-up set held and lacks. ``payload_hash`` is lower-case hex."""

    channel_id: str
    sender: str
    payload_hash: str
    missing_data: tuple[int, ...]
    data_count: int | None


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A row of ``acks``: ``by`` has the message, on this evidence."""

    channel_id: str
    sds_id: str
    by: str
    evidence: str
    certain: bool


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row of ``quarantine``."""

    topic: str
    partition: int
    offset: int
    reason: str
    raw: bytes | None


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is compared.

    ``lost`` are (channel id, SDS id, status) of ids given up in the end; ``row_numbers`` are (channel id, ``row_seq``),
    one for each row of ``deliveries``."""

    messages: list[DeliveredMessage] = field(default_factory=list)
    segments: list[DeliveredSegment] = field(default_factory=list)
    row_numbers: list[tuple[str, int]] = field(default_factory=list)
    incomplete: list[IncompleteMessage] = field(default_factory=list)
    lost: list[tuple[str, str, str]] = field(default_factory=list)
    acks: list[Acknowledgement] = field(default_factory=list)
    quarantine: list[Quarantined] = field(default_factory=list)
    envelopes: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which the tables differ from the truth."""

    promise: str
    channel_id: str
    subject: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.channel_id or '-'} {self.subject}: {self.what}"

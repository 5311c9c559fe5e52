"""Represents the truth about a simulated conversation: for every message what was sent, what reached the observer, and
what follows.

Values only, and their files: one Parquet table per kind in one directory, so that a report in another process, or in
another language, compares with the same facts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from reliable_channel.core.errors import EnvironmentFault


class MessageOutcome(StrEnum):
    """The true outcome of a message: what the observer can know of it in the end."""

    DELIVERED = "delivered"
    """Enough of its segments arrived to rebuild it."""
    INCOMPLETE = "incomplete"
    """Some segments arrived, too few to rebuild it."""
    REFERENCED = "referenced"
    """No segment arrived, but messages that did arrive name it in their causal history."""
    NO_TRACE = "no_trace"
    """Nothing that arrived mentions it."""


@dataclass(frozen=True, slots=True)
class TrueMessage:
    """One application message. ``announced_keccak`` is the hash its segments carry, in hex; ``missing_data`` are the
    data segments that never arrived as themselves; ``complete_at_ms`` is when the observer held enough. Times in
    virtual Unix ms."""

    channel_id: str
    content_topic: str
    pubsub_topic: str
    number: int
    sender: str
    sent_at_ms: int
    payload: bytes
    announced_keccak: str
    ephemeral: bool
    data_count: int
    parity_count: int
    first_sds_id: str
    last_sds_id: str
    first_lamport: int | None
    fault: str | None
    outcome: str
    complete_at_ms: int | None
    arrived_data: list[int]
    missing_data: list[int]
    by_parity: bool
    by_retransmission: bool
    sender_confirmed: bool


@dataclass(frozen=True, slots=True)
class TrueSegment:
    """One SDS message: a segment (identified by ``message`` and ``ordinal``) or a sync message. ``arrived_at_ms`` is
    the first decodable arrival at the observer, ``repaired_at_ms`` when the other segments of its message revealed it
    before that."""

    channel_id: str
    sds_id: str
    sender: str
    lamport: int | None
    history: list[str]
    made_at_ms: int
    message: int | None
    ordinal: int | None
    is_parity: bool
    arrived_at_ms: int | None
    repaired_at_ms: int | None
    dispatches: int
    observed_copies: int

    @property
    def history_seen(self) -> bool:
        """Whether it arrived at the observer before the other segments of its message revealed it: only then is its
        causal history known there."""
        return self.arrived_at_ms is not None and self.repaired_at_ms is None

    @property
    def known_at_ms(self) -> int | None:
        """When the observer knew it, from its arrival or from other segments of its message; ``None`` when never."""
        times = [t for t in (self.arrived_at_ms, self.repaired_at_ms) if t is not None]
        return min(times) if times else None


@dataclass(frozen=True, slots=True)
class TrueAck:
    """``by`` states in a causal history that arrived at ``at_ms`` that it has the message: certain evidence."""

    channel_id: str
    sds_id: str
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Reception:
    """A participant had the SDS message from that time on; any acknowledgement by it before would be false."""

    channel_id: str
    sds_id: str
    participant: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Presence:
    """A participant was on the channel."""

    channel_id: str
    participant: str


@dataclass(frozen=True, slots=True)
class TrueDependency:
    """An SDS id that a message named when the observer did not know it. It is waited for, unless it is older than the
    first observation of the channel (LIP-109). ``known_at_ms`` is ``None`` when it never arrived."""

    channel_id: str
    sds_id: str
    first_named_ms: int
    before_observation: bool
    known_at_ms: int | None


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that must become a quarantine row with this reason. ``record`` is its number in the written order;
    topic, partition and offset are where Kafka put it."""

    record: int
    label: str
    reason: str
    value: bytes | None
    topic: str = ""
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class TrueAttack:
    """A record of a hostile sender and its :class:`~reliable_channel.simulation.attacks.Fate`.

    ``sender`` is the claimed one; ``payload`` is a bare content and ``payload_hash`` (hex) what a segment announces;
    ``names`` are the ids in its causal history. ``before_observation``: its clock is at or before that of the first
    message observed, so nobody waits for the ids it names. ``record`` is its number in the written order; topic,
    partition and offset are where Kafka put it. ``at_ms`` is in virtual Unix ms."""

    channel_id: str
    attack: str
    fate: str
    sds_id: str
    sender: str
    lamport: int | None
    payload: bytes | None
    payload_hash: str | None
    names: list[str]
    before_observation: bool
    at_ms: int
    record: int
    topic: str = ""
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Truth:
    """The complete truth about one simulated run."""

    messages: list[TrueMessage] = dataclasses.field(default_factory=list)
    segments: list[TrueSegment] = dataclasses.field(default_factory=list)
    acks: list[TrueAck] = dataclasses.field(default_factory=list)
    heard: list[Reception] = dataclasses.field(default_factory=list)
    presences: list[Presence] = dataclasses.field(default_factory=list)
    dependencies: list[TrueDependency] = dataclasses.field(default_factory=list)
    bad: list[BadRecord] = dataclasses.field(default_factory=list)
    attacks: list[TrueAttack] = dataclasses.field(default_factory=list)

    def locate(self, coordinates: Sequence[tuple[str, int, int]]) -> Truth:
        """The same with the Kafka coordinates (topic, partition, offset) of every record, in the written order."""
        return dataclasses.replace(
            self,
            bad=[_locate(record, coordinates) for record in self.bad],
            attacks=[_locate(record, coordinates) for record in self.attacks],
        )

    def save(self, directory: Path) -> None:
        """Write one Parquet file per kind. Raises :class:`EnvironmentFault` when the disk refuses."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for field in dataclasses.fields(self):
                rows = [_as_row(value) for value in getattr(self, field.name)]
                table = pa.Table.from_pylist(rows, schema=_SCHEMAS[field.name])
                pq.write_table(table, directory / f"{field.name}.parquet", compression="zstd")
        except OSError as error:
            raise EnvironmentFault(
                f"The truth file cannot be written to {directory}: {error.strerror}.", "Free space or choose another."
            ) from error

    @classmethod
    def load(cls, directory: Path) -> Truth:
        """Read what :meth:`save` wrote. Raises :class:`EnvironmentFault` when it is not there."""
        loaded: dict[str, Any] = {}
        for name, kind in _KINDS.items():
            path = directory / f"{name}.parquet"
            if not path.exists():
                raise EnvironmentFault(f"There is no truth at {path}.", "Run `reliable-channel simulate` first.")
            loaded[name] = [kind(**row) for row in pq.read_table(path).to_pylist()]
        return cls(**loaded)


Located = TypeVar("Located", BadRecord, TrueAttack)


def _locate(record: Located, coordinates: Sequence[tuple[str, int, int]]) -> Located:
    topic, partition, offset = coordinates[record.record]
    return dataclasses.replace(record, topic=topic, partition=partition, offset=offset)


def _as_row(value: Any) -> dict[str, Any]:
    # Not asdict, which takes ten times as long: it copies every value.
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


_KINDS: dict[str, type] = {name: get_args(rows)[0] for name, rows in get_type_hints(Truth).items()}
_ARROW: dict[str, pa.DataType] = {
    "str": pa.string(),
    "str | None": pa.string(),
    "int": pa.int64(),
    "int | None": pa.int64(),
    "bool": pa.bool_(),
    "bytes": pa.large_binary(),
    "bytes | None": pa.large_binary(),
    "list[int]": pa.list_(pa.int64()),
    "list[str]": pa.list_(pa.string()),
}
_SCHEMAS = {
    name: pa.schema([(f.name, _ARROW[str(f.type)]) for f in dataclasses.fields(kind)]) for name, kind in _KINDS.items()
}

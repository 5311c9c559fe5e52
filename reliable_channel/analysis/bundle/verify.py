"""Checks a bundle of evidence, with nothing but its file and the code that made the tables: no table, Spark or network.

A check has what was checked, and its outcome: ``ok``, ``differs``, or ``cannot be checked`` with the reason.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds
from pydantic import ValidationError

from reliable_channel import __version__
from reliable_channel.analysis import text
from reliable_channel.analysis.bundle.archive import MAX_BYTES, Bundle
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import ChannelsSettings, ChannelTopic, PathSettings
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.bloom import list_absent
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.segment import DEFAULT_DIALECTS, open_ephemeral
from reliable_channel.core.wire.waku import decode_waku_message, message_hash
from reliable_channel.lake import tables
from reliable_channel.lake.tables import CHANNEL_KEY, RECORD_KEY, Table
from reliable_channel.pipeline.ingest.decode import Decoded, RecordDecoder
from reliable_channel.pipeline.lookup import search_ids
from reliable_channel.pipeline.reassembly.set_results import Message
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentDecryptor, SegmentRow
from reliable_channel.pipeline.verdict.gaps import Span
from reliable_channel.pipeline.verdict.in_duckdb import evidence_query
from reliable_channel.pipeline.verdict.judge import judge_message

NAMED = 3
"""How many of those that differ are named."""
MAX_COPIES = 4
"""How many copies of a message are searched for the acknowledgements that it shows: each has a filter to decode, and a
hostile bundle may have thousands."""
MAX_DECODED_BYTES = 8 * MAX_BYTES
"""How much is decoded in all: rows of a hostile bundle may all name its largest envelope."""
_STATEMENTS = {
    tables.SENDER_EVENTS: "senders and recipients",
    tables.STORE_PRESENCE: "answers of store nodes",
    tables.SIGHTINGS: "sightings of bridges and logs",
}
_DECODED = frozenset(Decoded.__annotations__) - {"message_hash", "kind", "source", "content", "bloom_filter"}


class CheckOutcome(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    DIFFERS = "differs"
    UNKNOWN = "cannot be checked"


class EvidenceCheck(NamedTuple):
    """What was checked, with what outcome, and details: what differs, or why it cannot be checked."""

    what: str
    outcome: CheckOutcome
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:17}  {text.printable(self.what, 600)}" + (
            f": {text.printable(self.detail, 600)}" if self.detail else ""
        )


class BundleSnapshot(TableSnapshot):
    """The tables of a bundle, for what reads tables."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(PathSettings())
        self._datasets = {table.name: ds.dataset(rows) for table, rows in bundle.tables.items()}

    def table(self, name: str) -> None:
        """There is no Delta table in a bundle, and those beside its file are others."""

    def dataset(self, name: str) -> ds.Dataset | None:
        """The rows of a table, ``None`` when the bundle has none."""
        return self._datasets.get(name)


def verify(bundle: Bundle, channels: ChannelsSettings, key_files: Sequence[Path] = ()) -> list[EvidenceCheck]:
    """Check everything that can be checked. ``channels``: has the keys of the topic if ``key_files`` is empty. Raises
    ``LocalError`` if the bundle does not describe one message."""
    try:
        message = bundle.about["message"]
        own = channels.topic_for(message["content_topic"], message["pubsub_topic"])
        keys = tuple(map(str, key_files)) or (own.decryption_key_files if own else ())
        check = _Verification(bundle, keys)
        return [
            *check.members(),
            check.envelopes(),
            *check.decoding(),
            check.payload(),
            *check.acknowledgements(),
            check.verdict(),
            check.completeness(),
            *check.statements(),
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, ValidationError) as error:
        raise LocalError(
            f"The bundle does not describe a message: {type(error).__name__} {str(error)[:200]!a}.",
            "Ask for the file again.",
        ) from error


class _Verification:
    def __init__(self, bundle: Bundle, key_files: tuple[str, ...]) -> None:
        self._bundle, self._key_files = bundle, key_files
        self._observer: dict[str, Any] = bundle.about["observer"]
        (self._status,) = self._rows(tables.DELIVERY_STATUS)
        self._ids = {*self._status["sds_ids"]}
        self._topic: dict[str, Any] | None = self._observer["topic"]
        self._may_decode = MAX_DECODED_BYTES
        self._locked = bool(self._topic and self._topic["keyed"] and not key_files)

    def _rows(self, table: Table) -> list[dict[str, Any]]:
        rows = self._bundle.tables.get(table)
        return [] if rows is None else rows.to_pylist()

    @cached_property
    def _channels(self) -> ChannelsSettings:
        """The configuration by which the envelopes were decoded."""
        topic = self._topic and ChannelTopic(
            content_topic="*",
            family=self._topic["family"],
            dialects=frozenset(self._topic["dialects"]),
            decryption_key_files=self._key_files if self._topic["keyed"] else (),
            encryption_layer=self._topic.get("encryption_layer", EncryptionLayer.AROUND_SDS),
            store_plaintext=self._topic["store_plaintext"],
        )
        return ChannelsSettings(content_topics=(topic,) if topic else ())

    @cached_property
    def _decoder(self) -> RecordDecoder:
        return RecordDecoder(self._channels)

    @cached_property
    def _records(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        return {_key_of(row): row for row in self._rows(tables.ENVELOPES)}

    def _decode(self, row: Mapping[str, Any]) -> Decoded | None:
        """The record of a row, decoded again from its bytes; ``None`` if they are not here, or locked."""
        record = self._records.get(_key_of(row), row)
        value = self._bundle.envelopes.get(record.get("message_hash", b""))
        raw = row.get("raw")
        if value is None and raw is not None and hashlib.sha256(raw).digest() == row["raw_digest"]:
            value = raw
        # Records refused before decryption need no key.
        locked = self._locked and row.get("stage") not in ("record", "envelope")
        if value is None or self._topic is None or locked or len(value) > self._may_decode:
            return None
        self._may_decode -= len(value)
        pubsub, source = ((record[name] or "").encode() for name in ("pubsub_topic", "source"))
        decoded = self._decoder.decode(value, pubsub, source, int(record["event_time"].timestamp() * 1_000_000))
        return None if decoded.stage == "decryption" and "reason" not in row else decoded  # not with this key

    @cached_property
    def _decoded(self) -> list[tuple[dict[str, Any], Decoded | None]]:
        rows = sorted(self._rows(tables.SDS_MESSAGES), key=_key_of)
        return [(row, self._decode(row)) for row in rows]

    def members(self) -> Iterator[EvidenceCheck]:
        altered, unknown = self._bundle.altered, self._bundle.unknown
        yield _report_differing("members: bytes (SHA256SUMS)", altered, self._bundle.members)
        if unknown:
            why = f"{', '.join(unknown[:NAMED])}: this version does not know what it is"
            yield _make_unknown(f"{len(unknown)} other members", why)
        written = self._bundle.about["program"]
        if written != f"reliable-channel {__version__}":
            why = f"{written} wrote the bundle, this is {__version__}; what differs may be the program"
            yield _make_unknown("version of the program", why)

    def envelopes(self) -> EvidenceCheck:
        """Recompute the hash of every envelope, from its bytes and the pubsub topic of its record."""
        topics = {row["message_hash"]: row["pubsub_topic"] for row in self._records.values()}
        wrong = []
        for digest, value in self._bundle.envelopes.items():
            envelope = decode_waku_message(value)
            if isinstance(envelope, Malformed) or message_hash(topics.get(digest) or "", envelope) != digest:
                wrong.append(digest.hex())
        return _report_differing("envelopes: message hash (14/WAKU2-MESSAGE)", wrong, len(self._bundle.envelopes))

    def decoding(self) -> Iterator[EvidenceCheck]:
        """Decode the envelopes again, and compare the result with the rows."""
        wrong = [
            row["sds_id"]
            for row, decoded in self._decoded
            if decoded and not (decoded.message_hash == row["envelope_hash"] and _is_same(row, decoded, _DECODED))
        ]
        what = "SDS messages: decoded again" + (
            ", with the key" if self._topic and self._topic["keyed"] and self._key_files else ""
        )
        yield _report_differing(what, wrong, sum(decoded is not None for _, decoded in self._decoded))
        if absent := sum(decoded is None for _, decoded in self._decoded):
            keyed = self._topic and self._topic["keyed"]
            why = "encrypted, and no key given opens them (--key-file)" if keyed else "their envelopes are not here"
            yield _make_unknown(f"{absent} SDS messages: decoding", why)
        refused = [
            (row, None if row["stage"] == "quota" or row["disposition"] == "requeued" else self._decode(row))
            for row in self._rows(tables.QUARANTINE)
        ]
        wrong = [
            row["reason"] for row, decoded in refused if decoded and not _is_same(row, decoded, {"stage", "reason"})
        ]
        if refused:
            checked = sum(decoded is not None for _, decoded in refused)
            yield _report_differing("quarantined records: reason", wrong, checked)
            if checked < len(refused):
                why = "encrypted, not whole, above a quota, or requeued since"
                yield _make_unknown(f"{len(refused) - checked} quarantined records", why)

    def payload(self) -> EvidenceCheck:
        """Rebuild the message from its segments, and compare its hash, and whether it can be rebuilt, with what the
        verdict is derived from."""
        wanted: bytes | None = self._status["entire_message_hash"]
        mine = [
            (row, decoded)
            for row, decoded in self._decoded
            if row["sds_id"] in self._ids and row["entire_message_hash"] == wanted and wanted is not None
        ]
        here = [
            (row, content)
            for row, decoded in mine
            if (content := decoded.content if decoded else row["content"]) and (decoded or not row["encrypted"])
        ]
        payload = self._rebuild(here)
        k = max((row["data_count"] or 0 for row, _ in mine), default=0) or "an unknown number"
        what = f"message: rebuilt from {len({row['sds_id'] for row, _ in here})} segments, of {k} needed"
        if payload is not None:
            sizes = {row["payload_bytes"] for row in self._rows(tables.DELIVERIES) if _is_delivery(row, self._ids)}
            refuted = sizes - {None, len(payload)} or self._status["cause"] == "segment_missing"
            why = f"the tables have another size ({sizes}), or say that a segment is missing" if refuted else ""
            return _conclude(f"{what}: Keccak-256, {len(payload)} bytes", why)
        if len(here) < len(mine):
            return _make_unknown("message: Keccak-256", "its segments are encrypted, or not all here")
        if self._status["verdict"] != "delivered":
            return EvidenceCheck(what.replace("rebuilt", "cannot be rebuilt"), CheckOutcome.OK)
        if why := self._explain_forgotten():
            return _make_unknown(what, why)
        return _conclude(what, "they are not enough")

    def _rebuild(self, segments: Iterable[tuple[dict[str, Any], bytes]]) -> bytes | None:
        """The payload, with the code of the reassembly job; ``None`` if these segments do not suffice."""
        sets = HashSets(SegmentationConfig(codec=self._observer["codec"]))
        decrypt = SegmentDecryptor(self._channels)
        for row, content in segments:
            fields = {name: row[name] for name in SegmentRow._fields if name in row}
            segment = decrypt(SegmentRow(**{**fields, "event_us": 0, "content": content}))._replace(encrypted=False)
            if row["segment_kind"] == "bare":
                # A row in the clear has the payload of an ephemeral message, a ciphertext its whole content.
                is_whole = row["encrypted"] and row["sds_kind"] == "ephemeral"
                bare = open_ephemeral(segment.content, DEFAULT_DIALECTS) if is_whole else segment.content
                if isinstance(bare, bytes) and keccak256(bare) == row["entire_message_hash"]:
                    return bare
                continue
            for built in sets.add(segment):
                if isinstance(built, Message):
                    payload: bytes | None = built.payload
                    return payload
        return None

    def _explain_forgotten(self) -> str:
        since = self._observer["evidence_since"]
        if self._status["first_seen"] >= dt.datetime.fromisoformat(since):
            return ""
        return f"the tables keep evidence only since {since}, and the message is older"

    def acknowledgements(self) -> Iterator[EvidenceCheck]:
        """Look again at the causal history or filter that acknowledges."""
        by_id: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row, _ in self._decoded:
            by_id.setdefault((row["sds_id"], row["sender_id"]), []).append(row)
        decoded_by_key = {_key_of(row): decoded for row, decoded in self._decoded}
        outcomes: dict[CheckOutcome, list[str]] = {outcome: [] for outcome in CheckOutcome}
        rows = [row for row in self._rows(tables.ACKS) if row["sds_id"] in self._ids]
        by_message: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            key = row["evidence_sds_id"], row["acknowledged_by"], row["evidence"] == "causal_history"
            by_message.setdefault(key, []).append(row)
        for (sds_id, acknowledged_by, in_history), named in by_message.items():
            ids = {row["sds_id"] for row in named}
            copies = by_id.get((sds_id, acknowledged_by), [])[:MAX_COPIES]
            shown = [_find_shown(ids, copy, decoded_by_key[_key_of(copy)], in_history) for copy in copies] or [None]
            for row in named:
                outcome = (
                    CheckOutcome.OK
                    if any(row["sds_id"] in of_copy for of_copy in shown if of_copy)
                    else CheckOutcome.UNKNOWN
                    if None in shown
                    else CheckOutcome.DIFFERS
                )
                outcomes[outcome].append(f"{acknowledged_by} by {sds_id}")
        kinds = Counter(row["evidence"].replace("_", " ") for row in rows)
        what = "acknowledgements" + (
            f" ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))})" if kinds else ""
        )
        yield _report_differing(what, outcomes[CheckOutcome.DIFFERS], len(rows) - len(outcomes[CheckOutcome.UNKNOWN]))
        if unknown := outcomes[CheckOutcome.UNKNOWN]:
            why = f"the message or filter that shows it is not here or not readable: {', '.join(unknown[:NAMED])}"
            yield _make_unknown(f"{len(unknown)} acknowledgements", why)

    def verdict(self) -> EvidenceCheck:
        """Derive the verdict from the rows again, as the verdict job does."""
        status = self._status
        what = f"verdict {_describe_verdict(status)}"
        if why := self._explain_forgotten():
            return _make_unknown(what, why)
        suspected = {name for row in self._rows(tables.QUARANTINE) for name in search_ids(row["stage"], row["raw"])}
        silent = [Span(*map(dt.datetime.fromisoformat, span)) for span in self._observer["silent"]]
        values = {"suspected": sorted(suspected), "ids": sorted(self._ids), **{n: status[n] for n in CHANNEL_KEY}}
        rows = [
            row
            for row in BundleSnapshot(self._bundle).select(evidence_query(bool(silent)), values)
            if row["message_key"] == status["message_key"] and row["first_seen"] is not None
        ]
        if not rows:
            return EvidenceCheck(what, CheckOutcome.DIFFERS, "no evidence of such a message is here")
        settle_ms, followed = int(self._observer["settle_delay_ms"]), bool(self._observer["followed"])
        asks = bool(self._observer["asks_stores"])
        derived = judge_message(rows[0], status["as_of"], settle_ms, silent, followed, asks)
        wrong = [name for name, value in status.items() if derived[name] != value]
        detail = f"{', '.join(wrong)}; it follows: {_describe_verdict(derived)}" if wrong else ""
        return _conclude(f"{what}: derived again", detail)

    def completeness(self) -> EvidenceCheck:
        """Which SDS messages are named by those here, and are not here themselves."""
        here = {row["sds_id"] for row, _ in self._decoded}
        own = [row for row, _ in self._decoded if row["sds_id"] in self._ids]
        named = {entry["sds_id"] for row in own for entry in row["causal_history"] or ()} | self._ids
        absent = sorted(named - here)
        versions = "whoever has the tables at the versions in bundle.json gets the same file from them"
        if not absent:
            why = f"all {len(named)} SDS messages that it consists of or names are here, and {versions}"
            return _make_unknown("that nothing was left out", why)
        why = f"{len(absent)} of {len(named)} SDS messages that it consists of or names are not here"
        return _make_unknown("that nothing was left out", f"{why} ({', '.join(absent[:NAMED])}); {versions}")

    def statements(self) -> Iterator[EvidenceCheck]:
        """List the rows that only their authors can confirm."""
        counts = {who: len(self._rows(table)) for table, who in _STATEMENTS.items()}
        said = ", ".join(f"{count} of {who}" for who, count in counts.items() if count)
        if said:
            yield _make_unknown(f"statements ({said})", "only those who made them can confirm them")
        if left_out := self._bundle.about["envelopes_left_out"]:
            yield _make_unknown(f"{int(left_out)} envelopes", "left out, because bundles are bounded")
        times = "times of reception, settings and silence of the observer"
        yield _make_unknown(times, "only the observer has seen them")


def _key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in RECORD_KEY)


def _is_same(row: Mapping[str, Any], decoded: Decoded, columns: Iterable[str]) -> bool:
    return all(_to_plain(getattr(decoded, name)) == _to_plain(row[name]) for name in columns if name in row)


def _to_plain(value: Any) -> Any:
    """A decoded value as a row has it: entries of a history are structs there, and an empty list is null or not."""
    if isinstance(value, list | tuple):
        return [
            (each["sds_id"], each["retrieval_hint"], each["sender_id"])
            if isinstance(each, dict)
            else (each.message_id, each.retrieval_hint, each.sender_id)
            for each in value
        ]
    return value


def _is_delivery(row: Mapping[str, Any], ids: set[str]) -> bool:
    return row["row_kind"] == "message" and row["first_sds_id"] in ids


def _find_shown(ids: set[str], copy: Mapping[str, Any], decoded: Decoded | None, in_history: bool) -> set[str] | None:
    """Those of ``ids`` that a copy of an SDS message acknowledges, in its history or filter; ``None`` if that cannot be
    read. All at once, because the rows of a hostile bundle may all name one message with a long history."""
    if in_history:
        return ids & {entry["sds_id"] for entry in copy["causal_history"] or ()}
    absent = list_absent(decoded.bloom_filter if decoded else copy["bloom_filter"], sorted(ids))
    return None if absent is None else ids.difference(absent)


def _describe_verdict(status: Mapping[str, Any]) -> str:
    cause = f" ({status['cause']})" if status["cause"] else ""
    acknowledged = f", acknowledged by {', '.join(status['acknowledged_by'])}" if status["acknowledged_by"] else ""
    return f"{status['verdict']}{cause}" + (f", {status['detail']}" if status["detail"] else "") + acknowledged


def _report_differing(what: str, wrong: Sequence[str], checked: int) -> EvidenceCheck:
    detail = ", ".join(wrong[:NAMED]) + (f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
    return _conclude(f"{checked} {what}", detail)


def _make_unknown(what: str, why: str) -> EvidenceCheck:
    return EvidenceCheck(what, CheckOutcome.UNKNOWN, why)


def _conclude(what: str, differs: str) -> EvidenceCheck:
    return EvidenceCheck(what, CheckOutcome.DIFFERS if differs else CheckOutcome.OK, differs)

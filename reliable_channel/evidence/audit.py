"""Audits the store nodes: queries them for a sample of the envelopes that were seen here (``store_presence``).

Refetches query only missing messages, so a store that loses half of the traffic would otherwise be noticed only when it
is needed. An envelope's hash decides whether it is in the sample: all runs and all observers with the same share query
the same envelopes.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message
from reliable_channel.lake.follow import list_files_since, read_payloads
from reliable_channel.lake.read import dataset_of, open_table, public_dataset
from reliable_channel.lake.tables import ENVELOPES, SDS_MESSAGES
from reliable_channel.transport.base import hash_candidates

MAX_HASHES = 1_000
"""Maximum number of hashes queried in one run, about ten queries per node. The rest follow in the next run."""

_FROM_THE_NETWORK = ("relay", "filter")


@dataclass(frozen=True, slots=True)
class Audited:
    """An envelope that was seen; ``channel_id`` and ``sds_id`` are set if it contained an SDS message. Nodes may know
    it under any of ``hashes``."""

    message_hash: bytes
    hashes: tuple[bytes, ...]
    pubsub_topic: str
    content_topic: str
    channel_id: str | None = None
    sds_id: str | None = None


def choose_sample(settings: Settings, now: dt.datetime, queried: pa.ChunkedArray) -> list[Audited]:
    """Select the envelopes of the configured content topics to query now, oldest first. ``queried``: hashes already
    queried.

    Only envelopes that a node should hold: seen by relay or filter, not ephemeral, old enough to be stored, and not so
    old that they may have been deleted."""
    audit = settings.store.audit
    if not audit.share:
        return []
    newest, oldest = now - dt.timedelta(milliseconds=audit.after_ms), now - dt.timedelta(milliseconds=audit.within_ms)
    time, kind = pc.field("event_time"), pc.field("kind")
    seen = dataset_of(open_table(settings.paths, ENVELOPES))
    wanted = (time >= oldest) & (time <= newest) & (kind == "sds") & ~pc.field("ephemeral")
    wanted &= pc.field("source").isin(_FROM_THE_NETWORK)
    if (threshold := compute_threshold(audit.share)) is not None:
        wanted &= pc.field("message_hash") < threshold
    columns = ["message_hash", "pubsub_topic", "content_topic", "event_time", "sender_timestamp_ns"]
    rows = seen.to_table(columns=columns, filter=wanted)
    new = rows.filter(pc.invert(pc.is_in(rows["message_hash"], value_set=queried.combine_chunks())))
    first_of_each = (
        new.sort_by("event_time")
        .group_by("message_hash", use_threads=False)  # with threads Arrow refuses to take the first of a group
        .aggregate([(name, "first") for name in columns[1:]])
    )
    chosen = {row["message_hash"]: row for row in first_of_each.rename_columns(columns)[:MAX_HASHES].to_pylist()}
    first_chosen = [*chosen]
    carried = _read_contents(settings, first_chosen, oldest)
    without_time = [hash_ for hash_ in first_chosen if chosen[hash_]["sender_timestamp_ns"] is None]
    others = _read_other_hashes(settings, without_time, oldest)
    return [
        Audited(
            hash_,
            others.get(hash_, (hash_,)),
            chosen[hash_]["pubsub_topic"],
            chosen[hash_]["content_topic"],
            *carried.get(hash_, (None, None)),
        )
        for hash_ in first_chosen
    ]


def _read_other_hashes(settings: Settings, hashes: list[bytes], oldest: dt.datetime) -> dict[bytes, tuple[bytes, ...]]:
    """All hashes under which nodes may know envelopes without a timestamp, which some hash in another way."""
    if not hashes:
        return {}
    files = list_files_since(open_table(settings.paths, ENVELOPES), "event_time", int(oldest.timestamp() * 1_000_000))
    among = pc.field("message_hash").isin(hashes)
    columns = ["message_hash", "pubsub_topic", "value"]
    rows = read_payloads(settings.paths, ENVELOPES, files, columns, ["message_hash"], among).to_pylist()
    decoded = [(row, decode_waku_message(row["value"])) for row in rows if row["value"] is not None]
    return {
        row["message_hash"]: tuple(dict.fromkeys((row["message_hash"], *hash_candidates(row["pubsub_topic"], message))))
        for row, message in decoded
        if isinstance(message, WakuMessage)
    }


def compute_threshold(share: float) -> bytes | None:
    """Compute the value below which the hashes of the audited share are; None: all envelopes."""
    # Binary values compare byte by byte, and hashes are evenly spread: eight bytes divide them precisely enough.
    wanted = int(share * 2**64)
    return None if wanted >= 2**64 else wanted.to_bytes(8, "big")


def _read_contents(settings: Settings, hashes: list[bytes], oldest: dt.datetime) -> dict[bytes, tuple[str, str]]:
    """Look up channel and SDS id of the messages in these envelopes."""
    if not hashes:
        return {}
    rows = public_dataset(open_table(settings.paths, SDS_MESSAGES))
    among = (pc.field("event_time") >= oldest) & pc.field("envelope_hash").isin(hashes)
    contents = rows.to_table(columns=["envelope_hash", "channel_id", "sds_id"], filter=among).to_pylist()
    return {row["envelope_hash"]: (row["channel_id"], row["sds_id"]) for row in contents}

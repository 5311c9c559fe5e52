"""Judges one message from the row of evidence that :mod:`.gather` makes of it. No Spark: the verdict job and
``evidence verify`` share it."""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from reliable_channel.config import ChannelsSettings
from reliable_channel.lake.tables import CHANNEL_KEY
from reliable_channel.lake.tables.evidence import UNPROVEN
from reliable_channel.pipeline.verdict.gaps import Span
from reliable_channel.pipeline.verdict.rules import Cause, VerdictEvidence, decide

KEY = (*CHANNEL_KEY, "message_key")
COPIED = (*KEY, "sender_id", "entire_message_hash", "first_seen", "delivered_at", "data_missing")
"""The columns that verdicts copy from the evidence."""
_FLAGS = ("late", "refused", "sent", "held_back", "given_up", "undecodable", "undecryptable", "before_observation")
"""Facts that are null in the evidence where nothing shows them."""


def make_filter(channels: ChannelsSettings, read: frozenset[str]) -> Callable[[str, str], bool]:
    """Whether a content topic is read by the bridge (``read``; empty: all are) and configured for channels."""

    @functools.lru_cache(4_096)
    def is_followed(pubsub_topic: str, content_topic: str) -> bool:
        return (not read or content_topic in read) and channels.topic_for(content_topic, pubsub_topic) is not None

    return is_followed


def judge_message(
    row: dict[str, Any],
    as_of: dt.datetime,
    settle_delay_ms: int,
    gaps: Sequence[Span],
    followed: bool,
    ask_stores: bool,
) -> dict[str, Any]:
    """One row of ``delivery_status`` from one row of evidence, as of a time of the recorded clock. ``gaps``: the times
    in which no bridge listened to its topic; ``followed``: the topic is read (:func:`make_filter`); ``ask_stores``: a
    store node is configured."""
    first_seen = row["first_seen"]
    # A message that was only named was sent before the first message that names it, and after its earlier neighbours in
    # Lamport order (sent_since). Without such neighbours sent_since is null: it was sent any time before.
    named = row["source"] == "named"
    sent_since = row["sent_since"] if named else first_seen
    settled = as_of - first_seen >= dt.timedelta(milliseconds=settle_delay_ms)
    needed = count_needed_segments(row)
    times = Counter(row["acknowledgements"])
    can_rebuild = {who for who, segments in times.items() if segments >= needed and who != row["sender_id"]}
    lost_by = {*row["lost_by"]}
    evidence = VerdictEvidence(
        **{name: bool(row[name]) for name in _FLAGS},
        delivered=row["source"] == "delivered",
        settled=settled,
        needed=needed,
        received=row["received"],
        hash_mismatch=row["reason"] == "hash_mismatch",
        known_to_others=named or bool(can_rebuild) or bool(row["asked_for"]),
        store_has=True if row["present"] else False if row["absent"] else None,
        in_gap=any(since <= first_seen and (sent_since is None or sent_since <= until) for since, until in gaps),
        followed=followed,
        store_error=row["store_error"],
        witnessed=not named or bool(row["witnessed"]),
        logged_by=tuple(sorted({*row["logged_by"]})),
    )
    verdict, cause = decide(evidence)
    return {
        **{name: row[name] for name in COPIED},
        "sds_ids": row["ids"],
        "verdict": verdict.value,
        "cause": cause.value if cause else None,
        "detail": None if evidence.delivered else describe(evidence, cause, ask_stores),
        "acknowledged_by": sorted(can_rebuild - lost_by),
        "lost_by": sorted(lost_by),
        "as_of": as_of,
        "settled": settled or evidence.delivered,
    }


def count_needed_segments(row: dict[str, Any]) -> int:
    """The number of segments that a message needs: k if known. Parity alone does not show k; if such a set was reported
    incomplete, it needed more segments than were received. Of a send that only its sender reports, all segments count,
    because none of them shows k."""
    known: int | None = row["data_count"] if row["needed"] is None else row["needed"]
    if known is not None:
        return known
    if row["source"] == "incomplete":
        return int(row["received"]) + 1
    return len(row["ids"]) if row["source"] == "recorded" else 1


STORE_ERRORS = {
    "unreachable": "unreachable",
    "busy": "busy",
    "peer_failed": "the store peer that the node asked failed",
    "unknown_cursor": "the node no longer knew its own page",
    "needs_content_topics": "the node answers only queries that name content topics",
    "refused": "the node refused the query; a look-up by hash may need a store peer (store.nodes: peer_address)",
    UNPROVEN: "an encrypted envelope may or may not be it",
    "another message": "its retrieval hint leads to another message",
}
"""``store_presence.detail`` of a query that decided nothing (``StoreFault``, or no proof) → the reason, for people."""


MAX_NAMED = 3
"""How many nodes ``delivery_status.detail`` names."""


def describe(evidence: VerdictEvidence, cause: Cause | None, ask_stores: bool) -> str:
    """How much of the message was received, and without a cause, which evidence would show it; then the nodes whose
    logs have it."""
    what = _describe_arrival(evidence, cause, ask_stores)
    if not evidence.logged_by:
        return what
    more = len(evidence.logged_by) - MAX_NAMED
    nodes = [*evidence.logged_by[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
    return f"{what}; in the log of {', '.join(nodes)}"


def _describe_arrival(evidence: VerdictEvidence, cause: Cause | None, ask_stores: bool) -> str:
    came = f"{evidence.received} of {evidence.needed} needed segments arrived"
    if cause is Cause.PROPAGATED_NOT_STORED:
        return f"{came}; no store node that was asked has it"
    if cause is Cause.CLAIMED_BY_ONE:
        return f"{came}; only one participant names it, and not as its own"
    if cause is not None:
        return came
    if evidence.store_has is False:
        return f"{came}; its sender does not say whether it was sent"
    if not ask_stores:
        return f"{came}; no store node is configured (store.nodes) that could be asked"
    if evidence.store_error is not None:
        why = STORE_ERRORS.get(evidence.store_error, "an error")
        return f"{came}; store nodes were asked for it, and none could say: {why}"
    return f"{came}; no store node was asked for it yet"

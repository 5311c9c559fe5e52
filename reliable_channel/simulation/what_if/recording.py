"""Reads from the tables what a channel's participants sent, and how much each of them missed of the others."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import mode
from typing import Any

from reliable_channel.analysis import text
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.core.errors import LocalError
from reliable_channel.core.wire.bloom import list_absent
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.lake.tables import LATEST_SEND_TIME
from reliable_channel.simulation.scenario import Send

LEAST_MESSAGES, MOST_PARTICIPANTS = 20, 20
UNDER_WAY_MS = 3_000
"""How long a message may take to a participant before its absence from a filter shows a loss."""
SEND_MS = 3_600_000
"""How long the segments of a send may take. The same payload may have been sent long before, too."""
SEGMENT_OVERHEAD = 45
"""Bytes of a segment beside its part of the payload: the hash, index and counts."""
LEAST_SEGMENT = 64
"""The least bytes of a payload in a segment that a sender here can be set to."""
_UNKNOWN_LOSS = 0.1
"""The loss of all links if no filter lacks anything."""
_FIRST_ROLES = ("content", "parity", "ephemeral")
_MESSAGE = "coalesce(hex(entire_message_hash), sds_id)"
_MADE_MS = f"least(sender_timestamp_ns // 1000000, epoch_ms({LATEST_SEND_TIME}))"
"""When a message was made, whose first envelope may not have been seen: its filter lacks what came after that."""
Pair = tuple[str, str]
"""Sender, receiver."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The conversation of a channel. Times in ms; ``losses``: share of the envelopes that each link lost;
    ``repeats``: retransmissions and repairs per segment; ``observer_loss``: share of the messages that others named and
    that were never seen. ``parity``, ``history`` and ``segment_size`` (bytes) are what the messages show of the
    senders' settings; ``segment_size`` is ``None`` if no message had two segments."""

    channel_id: str
    content_topic: str
    participants: tuple[str, ...]
    sends: tuple[Send, ...]
    start_ms: int
    duration_ms: int
    joins_at: tuple[tuple[str, int], ...]
    losses: Mapping[Pair, float]
    repeats: float
    observer_loss: float
    delay_ms: int
    parity: float
    history: int
    segment_size: int | None
    family: WireFamily = WireFamily.SPEC
    acknowledge_within_ms: int = 800

    def scale(self, factor: float) -> Recording:
        """The same with every link's losses multiplied."""
        return replace(self, losses={pair: min(1.0, loss * factor) for pair, loss in self.losses.items()})


def read_recording(lake: TableSnapshot, key: ChannelFilter, messages: int) -> Recording:
    """The newest ``messages`` application messages of a channel. Raises ``LocalError`` for too few."""
    newest = lake.select(
        f"""SELECT {_MESSAGE} AS message, min(sent_ms) AS first_ms, max(sent_ms) AS last_ms FROM dispatches
            WHERE {key.where()} AND role IN {_FIRST_ROLES}
            GROUP BY ALL ORDER BY max(sent_ms) DESC, message LIMIT $messages""",  # noqa: S608 - our own
        {**key.parameters, "messages": messages},
    )
    if len(newest) < LEAST_MESSAGES:
        raise LocalError(
            f"{text.name(key.channel_id)} has {len(newest)} messages: too few to see its losses.",
            f"Choose a channel with {LEAST_MESSAGES} messages at least (`reliable-channel report` lists channels).",
        )
    window = lake.select(
        f"""SELECT sender_id, sds_id, role, sent_ms, content_bytes, unix_millis(first_seen) - sent_ms AS delay_ms,
                   {_MESSAGE} AS message
            FROM dispatches WHERE {key.where()} AND sent_ms >= $since
            ORDER BY sent_ms, envelope_hash""",  # noqa: S608 - our own
        {**key.parameters, "since": min(max(row["first_ms"], row["last_ms"] - SEND_MS) for row in newest)},
    )
    wanted = {row["message"] for row in newest}
    firsts = [row for row in window if row["role"] in _FIRST_ROLES and row["message"] in wanted]
    start_ms, end_ms = firsts[0]["sent_ms"], firsts[-1]["sent_ms"]
    talkative = Counter(row["sender_id"] for row in window).most_common(MOST_PARTICIPANTS)
    participants = tuple(sorted(name for name, _ in talkative))
    if len(participants) < 2:
        raise LocalError(
            f"Only {text.name(participants[0])} sends on {text.name(key.channel_id)}: nobody else shows what arrives.",
            "Choose a channel whose other participants send messages or syncs, too.",
        )
    heard = lake.select(
        f"SELECT sender_id, min(sent_ms) AS since_ms FROM dispatches WHERE {key.where()} GROUP BY sender_id",  # noqa: S608
        key.parameters,
    )
    joined = {row["sender_id"]: row["since_ms"] for row in heard}
    filters = lake.select(
        f"""SELECT sender_id, any_value(family) AS family, min_by(bloom_filter, event_time) AS bloom_filter,
                   max(len(causal_history)) AS history, min({_MADE_MS}) AS made_ms
            FROM sds_messages WHERE {key.where()} AND sds_kind IN ('content', 'sync') AND id_verified IS NOT FALSE
            AND sender_timestamp_ns // 1000000 >= $since
            GROUP BY sender_id, sds_id ORDER BY made_ms""",  # noqa: S608 - our own
        {**key.parameters, "since": start_ms},
    )
    contents = [row for row in firsts if row["role"] != "ephemeral" and row["sender_id"] in participants]
    data_counts = _read_data_counts(lake, key, start_ms)
    repeated = [row for row in window if row["role"] == "repeat"]
    delays = sorted(row["delay_ms"] for row in contents)
    roles: dict[str, Counter[str]] = defaultdict(Counter)
    for row in contents:
        if data_counts[row["message"]] > 1:
            roles[row["message"]][row["role"]] += 1
    sizes = [row["content_bytes"] for row in contents if row["role"] == "content" and row["message"] in roles]
    return Recording(
        channel_id=key.channel_id or "",
        content_topic=key.content_topic or "",
        participants=participants,
        sends=tuple(_read_sends(firsts, participants, start_ms, data_counts)),
        start_ms=start_ms,
        duration_ms=end_ms - start_ms,
        joins_at=tuple((name, max(0, joined[name] - start_ms)) for name in participants),
        losses=_estimate_losses(participants, joined, contents, repeated, filters),
        repeats=len(repeated) / max(1, len({row["sds_id"] for row in contents})),
        observer_loss=_read_observer_loss(lake, key, start_ms),
        delay_ms=min(2_000, max(20, round(delays[len(delays) // 2]))) if delays else 100,
        parity=sum(each["parity"] for each in roles.values()) / max(1, len(sizes)),
        history=mode([row["history"] for row in filters if row["history"]] or [2]),
        segment_size=max(LEAST_SEGMENT, max(sizes) - SEGMENT_OVERHEAD) if sizes else None,
        family=WireFamily(mode(row["family"] for row in filters)) if filters else WireFamily.SPEC,
    )


def _read_data_counts(lake: TableSnapshot, key: ChannelFilter, start_ms: int) -> Counter[str]:
    """Message → the number of its data segments."""
    rows = lake.select(
        f"""SELECT {_MESSAGE} AS message, max(data_count) AS data_count
            FROM sds_messages WHERE {key.where()} AND sender_timestamp_ns // 1000000 >= $since
            GROUP BY ALL""",  # noqa: S608 - our own
        {**key.parameters, "since": start_ms},
    )
    return Counter({row["message"]: row["data_count"] or 1 for row in rows})


def _read_sends(
    rows: Iterable[Mapping[str, Any]], participants: tuple[str, ...], start_ms: int, data_counts: Counter[str]
) -> Iterable[Send]:
    """The messages in the order in which they were sent; one whose sender is no participant is left out. A payload that
    was sent again has as many segments again."""
    messages: dict[tuple[str, int], Send] = {}
    segments: Counter[str] = Counter()
    for row in rows:
        message = row["message"]
        if row["role"] == "parity" or row["sender_id"] not in participants:
            continue
        one = (message, segments[message] // max(1, data_counts[message]))
        segments[message] += 1
        size, known = max(1, row["content_bytes"] - SEGMENT_OVERHEAD), messages.get(one)
        messages[one] = (
            Send(row["sender_id"], row["sent_ms"] - start_ms, size, row["role"] == "ephemeral")
            if known is None
            else replace(known, size=known.size + size)
        )
    return messages.values()


def _estimate_losses(
    participants: tuple[str, ...],
    joined: Mapping[str, int],
    contents: list[dict[str, Any]],
    repeated: list[dict[str, Any]],
    filters: list[dict[str, Any]],
) -> dict[Pair, float]:
    """Each link's share of the first copies that the receiver's next filter lacks, drawn to the mean of all as far as
    chance explains the difference: a link that loses little by chance would deliver much more without repair than there
    is."""
    sent_again = {row["sds_id"]: row["sent_ms"] for row in reversed(repeated)}
    times = [row["sent_ms"] for row in contents]
    shown: Counter[Pair] = Counter()
    lacked: Counter[Pair] = Counter()
    until: dict[str, int] = defaultdict(int)
    for made in filters:
        receiver, at = made["sender_id"], made["made_ms"]
        if receiver not in participants:
            continue
        end = bisect_right(times, at - UNDER_WAY_MS)
        new = [
            row
            for row in contents[until[receiver] : end]
            if row["sender_id"] != receiver
            and row["sent_ms"] >= joined[receiver]
            and sent_again.get(row["sds_id"], at + 1) > at
        ]
        until[receiver] = max(until[receiver], end)
        absent = list_absent(made["bloom_filter"], [row["sds_id"] for row in new])
        if absent is None:
            continue
        missed = set(absent)
        shown.update((row["sender_id"], receiver) for row in new)
        lacked.update((row["sender_id"], receiver) for row in new if row["sds_id"] in missed)
    mean = lacked.total() / shown.total() if lacked else _UNKNOWN_LOSS
    weight = _weigh_mean(shown, lacked, mean)
    return {
        (sender, receiver): (lacked[sender, receiver] + weight * mean) / (shown[sender, receiver] + weight)
        for sender in participants
        for receiver in participants
        if sender != receiver
    }


def _weigh_mean(shown: Counter[Pair], lacked: Counter[Pair], mean: float) -> float:
    """How many envelopes of a link say as much about it as the mean of all links does: the fewer, the more the links
    differ beyond chance (the method of moments for a beta-binomial distribution)."""
    total, by_chance = shown.total(), len(shown) - 1
    spread = total - sum(count * count for count in shown.values()) / max(1, total) - by_chance
    beyond = 0.0
    if lacked and mean < 1 and spread > 0:
        squares = sum((lacked[pair] - count * mean) ** 2 / count for pair, count in shown.items())
        beyond = (squares / (mean * (1 - mean)) - by_chance) / spread
    return max(1.0, 1 / max(1e-6, beyond) - 1)


def _read_observer_loss(lake: TableSnapshot, key: ChannelFilter, start_ms: int) -> float:
    (row,) = lake.select(
        f"""WITH seen AS (SELECT DISTINCT sds_id FROM sds_messages WHERE {key.where()}),
                 named AS (SELECT DISTINCT unnest(causal_history).sds_id AS sds_id FROM sds_messages
                           WHERE {key.where()} AND sender_timestamp_ns // 1000000 >= $since)
            SELECT count(*) AS named, count(*) FILTER (WHERE sds_id NOT IN (SELECT sds_id FROM seen)) AS unseen
            FROM named""",  # noqa: S608 - our own
        {**key.parameters, "since": start_ms},
    )
    return float(row["unseen"]) / row["named"] if row["named"] else 0.0

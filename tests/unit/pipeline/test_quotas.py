"""Quotas before state: who floods is refused, nobody else, and no cut into micro-batches changes an answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import Quota, QuotaSettings
from reliable_channel.pipeline.ingest.quotas import COSTING, Candidate, Cost, QuotaUsage, Refused, compute_costs

PLENTY = Quota(messages=10**9, bytes=10**9, segments=10**9, named_ids=10**9)
FEW = PLENTY.model_copy(update={"messages": 3})
WIDE = QuotaSettings(sender=PLENTY, channel=PLENTY, content_topic=PLENTY, pattern=PLENTY, pubsub_topic=PLENTY)
TIGHT = QuotaSettings(
    sender=Quota(messages=3, bytes=200, segments=3, named_ids=6),
    channel=Quota(messages=5, bytes=300, segments=5, named_ids=10),
    content_topic=Quota(messages=8, bytes=500, segments=8, named_ids=16),
    pattern=Quota(messages=11, bytes=700, segments=11, named_ids=22),
    pubsub_topic=Quota(messages=12, bytes=800, segments=12, named_ids=24),
)


def no_pattern(content_topic: str, pubsub_topic: str) -> None:
    """All content topics are configured by their names."""


def pattern_of(content_topic: str, pubsub_topic: str) -> str | None:
    """Content topic 1 is configured by its name, the others match a pattern."""
    return None if content_topic == "1" else "*"


def topics(number: int, offset: int, sender: str = "mallory") -> Candidate:
    return Candidate(("t", 0), offset, 0, ("p", f"invented {number}", "talk", sender), Cost(1))


def message(offset: int, sender: str, *, channel: str = "talk", window: int = 0, **cost: int) -> Candidate:
    return Candidate(("t", 0), offset, window, ("p", "c", channel, sender), Cost(**{"messages": 1, **cost}))


def judged(spent: QuotaUsage, batch: Sequence[Candidate]) -> Refused:
    """One micro-batch, summed as Spark sums it."""
    groups: dict[tuple[object, ...], Cost] = {}
    for one in batch:
        key = (one.topic_partition, one.window, one.sender)
        groups[key] = groups.get(key, Cost()).plus(one.cost)

    def of(topics: set[tuple[tuple[str, int], tuple[str, str]]]) -> Iterable[Candidate]:
        return [one for one in batch if (one.topic_partition, one.sender[:2]) in topics]

    return spent.judge([(*key, cost) for key, cost in groups.items()], of)  # type: ignore[misc]


def offsets(refused: Refused) -> list[int]:
    return [offset for _, _, offset in refused]


def quotas_of(refused: Refused) -> list[tuple[int, str]]:
    """The offset of each refused message, with the quota that it exceeds."""
    return [(offset, why.split()[0]) for (_, _, offset), why in refused.items()]


def test_who_floods_uses_up_its_own_quota_only() -> None:
    quotas = QuotaSettings(sender=FEW, channel=FEW.model_copy(update={"messages": 5}), content_topic=PLENTY)
    spent = QuotaUsage(quotas, no_pattern)
    refused = judged(spent, [*(message(n, "mallory") for n in range(100)), message(100, "alice"), message(101, "bob")])
    assert offsets(refused) == [*range(3, 100)]
    assert {*refused.values()} == {"quotas.sender.messages is 3 in 600000 ms"}


def test_many_names_together_are_held_by_the_quota_of_the_channel_and_of_the_content_topic() -> None:
    quotas = QuotaSettings(sender=FEW, channel=FEW.model_copy(update={"messages": 5}), content_topic=PLENTY)
    refused = judged(QuotaUsage(quotas, no_pattern), [message(n, f"mallory{n}") for n in range(8)])
    assert quotas_of(refused) == [(n, "quotas.channel.messages") for n in (5, 6, 7)]
    quotas = QuotaSettings(sender=PLENTY, channel=PLENTY, content_topic=FEW)
    refused = judged(QuotaUsage(quotas, no_pattern), [message(n, "mallory", channel=f"talk{n}") for n in range(4)])
    assert quotas_of(refused) == [(3, "quotas.content_topic.messages")]


@pytest.mark.parametrize("name", ["bytes", "segments", "named_ids"])
def test_every_kind_of_cost_counts_and_a_smaller_message_may_still_fit(name: str) -> None:
    quotas = QuotaSettings(sender=PLENTY.model_copy(update={name: 10}))
    batch = [message(n, "alice", **{name: cost}) for n, cost in enumerate([6, 6, 4])]
    assert offsets(judged(QuotaUsage(quotas, no_pattern), batch)) == [1]


def test_a_new_window_is_a_new_quota() -> None:
    spent = QuotaUsage(QuotaSettings(sender=FEW), no_pattern)
    assert offsets(judged(spent, [message(n, "alice", window=n // 4) for n in range(8)])) == [3, 7]


messages = st.lists(
    st.builds(
        lambda sender, channel, topic, step, costs: (sender, channel, topic, step, Cost(1, *costs)),
        st.sampled_from("abc"),
        st.sampled_from("xy"),
        st.sampled_from("123"),
        st.sampled_from([0, 0, 0, 0, 1]),
        st.tuples(st.integers(0, 150), st.integers(0, 1), st.integers(0, 4)),
    ),
    min_size=1,
    max_size=40,
)


@given(drawn=messages, cuts=st.lists(st.integers(0, 40), max_size=6), restarts=st.booleans())
def test_no_cut_and_no_restart_changes_an_answer(
    drawn: list[tuple[str, str, str, int, Cost]], cuts: list[int], restarts: bool
) -> None:
    windows = itertools.accumulate(step for *_, step, _ in drawn)
    rows = [
        Candidate(("t", 0), offset, window, ("p", topic, channel, sender), cost)
        for offset, (window, (sender, channel, topic, _, cost)) in enumerate(zip(windows, drawn, strict=True))
    ]
    expected = judged(QuotaUsage(TIGHT, pattern_of), rows)
    spent, found = QuotaUsage(TIGHT, pattern_of), Refused()
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for start, end in itertools.pairwise(edges):
        if restarts:  # what was admitted stands in the table, and is read from there
            spent = QuotaUsage(TIGHT, pattern_of)
            gone = set(offsets(found))
            for row in rows[:start]:
                if row.offset not in gone:
                    spent.add(row.topic_partition, row.window, row.sender, row.cost)
        found |= judged(spent, rows[start:end])
    # Of several content topics the answers come topic by topic or one by one; the answers are the same.
    assert found == expected
    used: dict[tuple[int, tuple[str, ...]], Cost] = {}
    for row in rows:
        if row.offset not in set(offsets(found)):
            scopes = [
                (4, TIGHT.sender, 1),
                (3, TIGHT.channel, 2),
                (2, TIGHT.content_topic, 2),
                (1, TIGHT.pubsub_topic, 2),
            ]
            for size, quota, times in scopes:
                key = (row.window, row.sender[:size])
                used[key] = used.get(key, Cost()).plus(row.cost)
                limits = [getattr(quota, name) * times for name in Cost._fields]
                assert all(a <= limit for a, limit in zip(used[key], limits, strict=True))


def test_topics_invented_to_match_a_pattern_share_its_quota() -> None:
    """Each content topic had a quota of its own, and anybody can invent topics that match ``/my-app/1/*/proto``."""
    quotas = WIDE.model_copy(update={"pattern": FEW})
    refused = judged(QuotaUsage(quotas, pattern_of), [topics(n, n) for n in range(6)])
    assert quotas_of(refused) == [(n, "quotas.pattern.messages") for n in (3, 4, 5)]
    named = [Candidate(("t", 0), n, 0, ("p", "1", "talk", "alice"), Cost(1)) for n in range(6)]
    assert judged(QuotaUsage(quotas, pattern_of), named) == {}


def test_all_content_topics_of_a_pubsub_topic_share_a_quota() -> None:
    quotas = WIDE.model_copy(update={"pubsub_topic": FEW})
    refused = judged(QuotaUsage(quotas, no_pattern), [topics(n, n) for n in range(5)])
    assert quotas_of(refused) == [(n, "quotas.pubsub_topic.messages") for n in (3, 4)]


@given(
    kind=st.sampled_from(["channel", "content_topic", "pattern", "pubsub_topic"]),
    hostile=st.integers(1, 4),
    topic_partitions=st.lists(st.integers(0, 100), min_size=1, max_size=10),
)
def test_an_honest_sender_with_less_than_an_equal_share_is_never_refused_for_strangers(
    kind: str, hostile: int, topic_partitions: list[int]
) -> None:
    """The hostile ones send a hundred messages, each up to what it may, and fill the quota that all share."""
    quota = PLENTY.model_copy(update={"messages": 60})
    quotas = WIDE.model_copy(update={kind: quota})

    def sender(number: int) -> tuple[str, str, str, str]:
        name = f"m{number}"
        match kind:
            case "channel":
                return ("p", "topic", "talk", name)
            case "content_topic":
                return ("p", "topic", name, name)
            case "pattern":
                return ("p", name, "talk", name)
            case _:
                return ("p", "topic", "talk", name)

    stream = [sender(n % hostile) for n in range(100)]
    for topic_partition in sorted(topic_partitions):
        stream.insert(topic_partition, sender(9))
    rows = [Candidate(("t", 0), offset, 0, who, Cost(1)) for offset, who in enumerate(stream)]
    refused = judged(QuotaUsage(quotas, pattern_of), rows)
    assert not [offset for offset in offsets(refused) if stream[offset] == sender(9)]
    assert len(rows) - len(refused) <= 2 * quota.messages


def test_no_scope_gets_above_twice_its_quota_however_many_names_are_invented() -> None:
    quotas = WIDE.model_copy(update={"pubsub_topic": PLENTY.model_copy(update={"messages": 50})})
    rows = [topics(n % (n // 7 + 1), n, sender=f"m{n}") for n in range(3_000)]
    assert 50 <= len(rows) - len(judged(QuotaUsage(quotas, no_pattern), rows)) <= 100


# ---- what a message takes ------------------------------------------------------------------------------------------

ENTRIES = pa.list_(pa.struct([("sds_id", pa.string()), ("retrieval_hint", pa.binary()), ("sender_id", pa.string())]))
SCHEMA = pa.schema(
    [
        ("sds_id", pa.string()),
        ("sender_id", pa.string()),
        ("content_bytes", pa.int32()),
        ("segment_kind", pa.string()),
        ("causal_history", ENTRIES),
        ("repair_request", ENTRIES),
    ]
)
entry = st.fixed_dictionaries(
    {
        "sds_id": st.text(max_size=5),
        "retrieval_hint": st.none() | st.binary(max_size=9),
        "sender_id": st.none() | st.text("aé👍", max_size=3),
    }
)
rows = st.fixed_dictionaries(
    {
        "sds_id": st.text("aé", min_size=1, max_size=5),
        "sender_id": st.none() | st.text("aé", max_size=5),
        "content_bytes": st.none() | st.integers(0, 2**31 - 1),
        "segment_kind": st.sampled_from([None, "bare", "data", "parity"]),
        "causal_history": st.none() | st.lists(entry, max_size=3),
        "repair_request": st.none() | st.lists(entry, max_size=3),
    }
)


def plain_cost(row: dict[str, Any]) -> Cost:
    named = [*(row["causal_history"] or ()), *(row["repair_request"] or ())]
    texts = [row["sds_id"], row["sender_id"], *(each[name] for each in named for name in ("sds_id", "sender_id"))]
    size = sum(len((text or "").encode()) for text in texts) + sum(len(each["retrieval_hint"] or b"") for each in named)
    segments = int(row["segment_kind"] in ("data", "parity"))
    return Cost(1, (row["content_bytes"] or 0) + size, segments, len(named))


@given(st.lists(rows, max_size=8), st.integers(0, 3))
def test_a_message_takes_the_bytes_of_all_that_it_names(messages: list[dict[str, Any]], skipped: int) -> None:
    batch = pa.RecordBatch.from_pylist(messages, schema=SCHEMA).slice(min(skipped, len(messages)))
    found = compute_costs({name: batch.column(name) for name in COSTING})
    costs = [Cost(*cost) for cost in zip(*(found[name].to_pylist() for name in Cost._fields), strict=True)]
    assert costs == [plain_cost(row) for row in messages[skipped:]]


def test_a_sync_message_full_of_ids_is_not_free() -> None:
    named = [{"sds_id": "i" * 1_024, "retrieval_hint": bytes(256), "sender_id": "s" * 1_024}] * 60
    sync = dict.fromkeys(SCHEMA.names) | {"sds_id": "sync", "sender_id": "mallory", "causal_history": named}
    batch = pa.RecordBatch.from_pylist([sync], schema=SCHEMA)
    found = compute_costs({name: batch.column(name) for name in COSTING})
    assert found["bytes"].to_pylist() == [60 * (2 * 1_024 + 256) + len("syncmallory")]

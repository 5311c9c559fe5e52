"""Quotas before state: who floods is refused, nobody else, and no cut into micro-batches changes an answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import Quota, QuotaSettings
from reliable_channel.pipeline.ingest.quotas import Candidate, Cost, Refused, Spent

PLENTY = Quota(messages=10**9, bytes=10**9, segments=10**9, named_ids=10**9)
FEW = PLENTY.model_copy(update={"messages": 3})
TIGHT = QuotaSettings(
    sender=Quota(messages=3, bytes=200, segments=3, named_ids=6),
    channel=Quota(messages=5, bytes=300, segments=5, named_ids=10),
    content_topic=Quota(messages=8, bytes=500, segments=8, named_ids=16),
)


def message(offset: int, sender: str, *, channel: str = "talk", window: int = 0, **cost: int) -> Candidate:
    return Candidate(("t", 0), offset, window, ("p", "c", channel, sender), Cost(**{"messages": 1, **cost}))


def judged(spent: Spent, batch: Sequence[Candidate]) -> list[Refused]:
    """One micro-batch, summed as Spark sums it."""
    groups: dict[tuple[object, ...], Cost] = {}
    for one in batch:
        key = (one.place, one.window, one.sender)
        groups[key] = groups.get(key, Cost()).plus(one.cost)

    def of(topics: set[tuple[tuple[str, int], tuple[str, str]]]) -> Iterable[Candidate]:
        return [one for one in batch if (one.place, one.sender[:2]) in topics]

    return spent.judge([(*key, cost) for key, cost in groups.items()], of)  # type: ignore[misc]


def offsets(refused: Iterable[Refused]) -> list[int]:
    return [one.offset for one in refused]


def test_who_floods_uses_up_its_own_quota_only() -> None:
    spent = Spent(QuotaSettings(sender=FEW, channel=FEW.model_copy(update={"messages": 5}), content_topic=PLENTY))
    refused = judged(spent, [*(message(n, "mallory") for n in range(100)), message(100, "alice"), message(101, "bob")])
    assert offsets(refused) == [*range(3, 100)]
    assert {one.detail for one in refused} == {"quotas.sender.messages is 3 in 600000 ms"}


def test_many_names_together_are_held_by_the_quota_of_the_channel_and_of_the_content_topic() -> None:
    quotas = QuotaSettings(sender=FEW, channel=FEW.model_copy(update={"messages": 5}), content_topic=PLENTY)
    refused = judged(Spent(quotas), [message(n, f"mallory{n}") for n in range(8)])
    assert [(one.offset, one.detail.split()[0]) for one in refused] == [
        (n, "quotas.channel.messages") for n in (5, 6, 7)
    ]
    quotas = QuotaSettings(sender=PLENTY, channel=PLENTY, content_topic=FEW)
    refused = judged(Spent(quotas), [message(n, "mallory", channel=f"talk{n}") for n in range(4)])
    assert [(one.offset, one.detail.split()[0]) for one in refused] == [(3, "quotas.content_topic.messages")]


@pytest.mark.parametrize("name", ["bytes", "segments", "named_ids"])
def test_every_kind_of_cost_counts_and_a_smaller_message_may_still_fit(name: str) -> None:
    quotas = QuotaSettings(sender=PLENTY.model_copy(update={name: 10}))
    batch = [message(n, "alice", **{name: cost}) for n, cost in enumerate([6, 6, 4])]
    assert offsets(judged(Spent(quotas), batch)) == [1]


def test_a_new_window_is_a_new_quota() -> None:
    spent = Spent(QuotaSettings(sender=FEW))
    assert offsets(judged(spent, [message(n, "alice", window=n // 4) for n in range(8)])) == [3, 7]


messages = st.lists(
    st.builds(
        lambda sender, channel, topic, step, costs: (sender, channel, topic, step, Cost(1, *costs)),
        st.sampled_from("abc"),
        st.sampled_from("xy"),
        st.sampled_from("12"),
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
    expected = judged(Spent(TIGHT), rows)
    spent, found = Spent(TIGHT), []
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for start, end in itertools.pairwise(edges):
        if restarts:  # what was admitted stands in the table, and is read from there
            spent = Spent(TIGHT)
            gone = set(offsets(found))
            for row in rows[:start]:
                if row.offset not in gone:
                    spent.add(row.place, row.window, row.sender, row.cost)
        found += judged(spent, rows[start:end])
    # Of several content topics the answers come topic by topic or one by one; the answers are the same.
    assert sorted(found) == sorted(expected)
    used: dict[tuple[int, tuple[str, ...]], Cost] = {}
    for row in rows:
        if row.offset not in set(offsets(found)):
            for size, quota in ((4, TIGHT.sender), (3, TIGHT.channel), (2, TIGHT.content_topic)):
                key = (row.window, row.sender[:size])
                used[key] = used.get(key, Cost()).plus(row.cost)
                assert all(a <= getattr(quota, name) for name, a in zip(Cost._fields, used[key], strict=True))

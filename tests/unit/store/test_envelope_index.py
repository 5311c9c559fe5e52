"""The index of envelopes: the same places as an ordered list, and at a cost that does not depend on their number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.transport.store.index import EnvelopeIndex, IndexRow
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.source import Position

MANY = 3_000
PUBSUB, CONTENT = "/waku/2/rs/0/0", "/app/1/busy/proto"
NOWHERE = b"\x00" * 32


def name(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


@pytest.fixture(scope="module")
def full() -> Iterator[EnvelopeIndex]:
    index = EnvelopeIndex(":memory:", "table")
    index._db = index._writer  # two connections in memory would be two databases
    index.add_file("file", (IndexRow(number, name(number), PUBSUB, CONTENT, number) for number in range(MANY)))
    index.complete()
    yield index
    index.close()


TOPICS: list[dict[str, Any]] = [
    {},
    {"pubsub_topic": PUBSUB},
    {"content_topics": (CONTENT,)},
    {"pubsub_topic": PUBSUB, "content_topics": (CONTENT,)},
]
TIMES: list[dict[str, Any]] = [
    {},
    {"start_time_ns": 5},
    {"end_time_ns": MANY - 5},
    {"start_time_ns": 5, "end_time_ns": MANY - 5},
]


def count_steps(index: EnvelopeIndex, query: StoreQuery, after: Position | None) -> int:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    index._db.set_progress_handler(count, 1)
    index.select(query, after, 21)
    index._db.set_progress_handler(None, 0)
    return steps


@pytest.mark.parametrize("times", TIMES, ids=lambda times: "+".join(times) or "always")
@pytest.mark.parametrize("topics", TOPICS, ids=lambda topics: "+".join(topics) or "all")
def test_the_last_page_costs_what_the_first_does(
    full: EnvelopeIndex, topics: dict[str, Any], times: dict[str, Any]
) -> None:
    """With a start and a cursor every page passed all that came before it: 22 ms at the end of 300 000 envelopes."""
    for forward, last in ((True, Position(MANY - 100, NOWHERE)), (False, Position(100, NOWHERE))):
        assert count_steps(full, StoreQuery(**topics, **times, forward=forward), last) < 1_500


@pytest.mark.parametrize("topics", TOPICS, ids=lambda topics: "+".join(topics) or "all")
def test_a_hash_is_looked_up_among_the_hashes_whatever_else_is_asked(
    full: EnvelopeIndex, topics: dict[str, Any]
) -> None:
    """With a topic all envelopes of the topic were looked through for it: 26 ms with 300 000 of them."""
    for times in TIMES:
        query = StoreQuery(hashes=(name(7), NOWHERE), **topics, **times)
        assert count_steps(full, query, None) < 1_500
        assert full.select(query, None, 21) == [Position(7, name(7))]


POSITIONS = st.builds(Position, st.integers(-1, 12), st.sampled_from([NOWHERE, name(1), b"\xff" * 32]))
BOUNDS = st.one_of(st.none(), st.integers(-1, 12))


@given(st.lists(st.integers(0, 10), max_size=12), BOUNDS, BOUNDS, st.one_of(st.none(), POSITIONS), st.booleans())
def test_the_places_are_those_of_an_ordered_list(
    times: list[int], start: int | None, end: int | None, after: Position | None, forward: bool
) -> None:
    index = EnvelopeIndex(":memory:", "table")
    index._db = index._writer
    places = sorted(Position(at, name(number)) for number, at in enumerate(times))
    index.add_file("file", (IndexRow(*place, PUBSUB, CONTENT, row) for row, place in enumerate(places)))
    index.complete()
    wanted = [
        place
        for place in places
        if (start is None or place.timestamp_ns >= start) and (end is None or place.timestamp_ns <= end)
    ]
    if after is not None:
        wanted = [place for place in wanted if (place > after if forward else place < after)]
    expected = (wanted if forward else wanted[::-1])[:5]
    for topics in TOPICS:
        query = StoreQuery(start_time_ns=start, end_time_ns=end, forward=forward, **topics)
        assert index.select(query, after, 5) == expected
    index.close()


def test_topics_are_forgotten_with_the_last_file_that_has_them() -> None:
    index = EnvelopeIndex(":memory:", "table")
    index._db = index._writer
    kept, gone = "/app/1/kept/proto", "/app/1/invented/proto"
    index.add_file("old", (IndexRow(n, name(n), PUBSUB, topic, n) for n, topic in enumerate((kept, gone))))
    index.add_file("new", [IndexRow(2, name(2), PUBSUB, kept, 0)])
    index.complete()
    index.remove_files(["old"])
    assert {topic for (topic,) in index._db.execute("SELECT name FROM topics")} == {PUBSUB, kept}
    assert index.select(StoreQuery(content_topics=(kept,)), None, 21) == [Position(2, name(2))]
    assert index.select(StoreQuery(content_topics=(gone,)), None, 21) == []
    index.close()

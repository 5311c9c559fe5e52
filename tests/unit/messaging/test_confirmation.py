"""Store confirmation and history: what a store has becomes ``stored``, and what must not be populated is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging import CONFIRMATION_SUBSCRIPTION_ID
from reliable_channel.messaging.confirmation import make_background_subscription
from reliable_channel.messaging.records import NOT_STORED
from reliable_channel.messaging.sender_events import SenderEventKind
from reliable_channel.transport.base import FailureReason, StoreUnavailable
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.sharding import Autosharding
from reliable_channel.transport.store.model import StorePage, StoreQuery
from tests.support.messaging_world import CONTENT, OTHER, PUBSUB, World, config

MINUTE = 60_000


class Asked:
    """A store that notes what it is asked and can be made to fail."""

    def __init__(self, world: World) -> None:
        assert world.transport.store is not None
        self.inner = world.transport.store
        self.queries: list[StoreQuery] = []
        self.down = False
        world.transport.store = self

    def query(self, query: StoreQuery) -> StorePage:
        self.queries.append(query)
        if self.down:
            raise StoreUnavailable("down")
        return self.inner.query(query)


def test_every_minute_the_store_is_asked_for_the_confirmed_content_topics(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT, OTHER))
    asked = Asked(world)
    world.run(3 * MINUTE)
    by_topic = [query for query in asked.queries if query.content_topics]
    assert [set(query.content_topics) for query in by_topic] == [{CONTENT, OTHER}] * 3
    assert {query.pubsub_topic for query in by_topic} == {PUBSUB}


def test_the_store_is_asked_again_a_minute_after_the_clock_was_set_back(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    asked = Asked(world)
    world.clock.advance(60 * MINUTE)
    world.run(MINUTE)
    world.clock.advance(-60 * MINUTE)
    before = len(asked.queries)
    world.run(2 * MINUTE)
    assert len(asked.queries) >= before + 2


def test_what_arrives_after_the_clock_was_set_back_is_confirmed(new_world: Callable[..., World]) -> None:
    """By the wrong clock it came before its subscription."""
    world = new_world(store_confirmation=True)
    world.clock.advance(24 * 60 * MINUTE)
    world.subscribe()
    world.clock.advance(-24 * 60 * MINUTE)
    world.arrives()
    world.run(2 * MINUTE)
    assert [record.stored for record in world.node.get_by_content_topic(CONTENT)] == [True]


def test_a_message_that_the_store_has_becomes_stored_for_good(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.arrives()
    request_id = world.send()
    world.run(MINUTE)
    assert all(record.stored for record in world.node.get_by_content_topic(CONTENT))
    assert world.record(request_id).stored
    assert world.names().count("message:stored") == 2
    world.run(2 * MINUTE)
    assert world.names().count("message:stored") == 2, "said once"


def test_without_store_confirmation_stored_is_never_populated(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=False, confirm_content_topics=(CONTENT,))
    asked = Asked(world)
    world.send()
    world.arrives()
    world.run(2 * MINUTE)
    assert asked.queries == []
    assert not any(record.stored for record in world.node.get_by_content_topic(CONTENT))


def test_without_confirm_content_topics_the_query_begins_with_the_first_subscription(
    new_world: Callable[..., World],
) -> None:
    world = new_world(store_confirmation=True)
    asked = Asked(world)
    world.run(2 * MINUTE)
    assert asked.queries == []
    subscription_id = world.subscribe()
    world.run(MINUTE)
    assert asked.queries[0].content_topics == (CONTENT,)
    world.node.unsubscribe(subscription_id)
    asked.queries.clear()
    world.run(2 * MINUTE)
    assert asked.queries == [], "the query that a subscription began ends with it"


def test_messages_from_before_the_subscription_are_not_confirmed(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True)
    request_id = world.send()
    world.run(MINUTE)
    world.subscribe(OTHER)
    world.run(MINUTE)
    assert not world.record(request_id).stored


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_was_sent_before_a_restart_is_confirmed_after_it(
    new_world: Callable[..., World], tmp_path: Path, is_stored: bool
) -> None:
    """It was neither stored nor sent again, and its request ended in nothing."""
    world = new_world(tmp_path / "messages.sqlite", store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda _: is_stored
    request_id = world.send()
    world.run(1_000)
    world.node.close()
    world.node = world.make_node()
    world.run(5 * MINUTE)
    record = world.record(request_id)
    assert (record.stored, len(world.transport.sent)) == ((True, 1) if is_stored else (False, 4))
    assert (record.error or "").startswith("" if is_stored else NOT_STORED)


def test_store_confirmation_alone_listens_to_nothing(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, filter_confirmation=False, confirm_content_topics=(CONTENT,))
    asked = Asked(world)
    assert world.node.get_active_subscriptions() == [CONFIRMATION_SUBSCRIPTION_ID]
    assert world.transport.subscribed == frozenset()
    world.run(MINUTE)
    assert asked.queries
    assert not any(record.received for record in world.node.get_by_content_topic(CONTENT))


def test_the_query_halts_while_unhealthy_and_resumes(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    asked = Asked(world)
    world.transport.report(Health(HealthState.UNHEALTHY))
    world.run(3 * MINUTE)
    assert asked.queries == []
    world.transport.report(Health(HealthState.MINIMALLY_HEALTHY))
    world.run(MINUTE)
    assert asked.queries


def test_a_message_that_no_store_has_is_sent_again_three_times_and_then_carries_an_error(
    new_world: Callable[..., World],
) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda message: False
    request_id = world.send()
    world.run(3 * MINUTE + 1_000)
    assert world.record(request_id).error is None
    world.run(5 * MINUTE)
    assert [message.payload for message in world.transport.sent] == [b"hello"] * 4
    stamps = [message.timestamp for message in world.transport.sent]
    assert stamps == sorted(set(stamps)), "gossip drops equal bytes, and stores refuse old ones"
    record = world.record(request_id)
    assert (record.sent, record.sending, record.stored) == (True, False, False)
    assert (record.error or "").startswith("not_stored: no store has it after it was sent 4 times")
    assert world.names().count("message:error") == 1
    kinds = [row.event for row in world.feed.rows]
    assert (kinds.count(SenderEventKind.RESENT), kinds.count(SenderEventKind.NOT_STORED)) == (3, 1)


def test_a_store_that_has_the_message_after_all_clears_the_error(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda message: False
    request_id = world.send()
    world.run(6 * MINUTE)
    assert world.record(request_id).error is not None
    world.network.store.add(PUBSUB, world.transport.sent[-1])
    world.run(MINUTE)
    record = world.record(request_id)
    assert (record.stored, record.error) == (True, None)


def test_a_message_sent_again_and_then_stored_is_stored(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda message: len(world.transport.sent) > 1
    request_id = world.send()
    world.run(3 * MINUTE)
    record = world.record(request_id)
    assert (record.sent, record.stored, record.sending) == (True, True, False)
    assert world.names().count("message:sent") == 1


def test_a_failed_second_sending_does_not_unsay_sent(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda message: False
    request_id = world.send()
    world.run()
    world.transport.failing = FailureReason.REFUSED
    world.run(MINUTE + 1_000)
    record = world.record(request_id)
    assert (record.sending, record.sent) == (False, True)
    assert (record.error or "").startswith("refused")


def test_a_message_just_sent_is_not_yet_judged_missing(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda message: False
    world.run(MINUTE - 2_000)
    world.send()
    world.run(3_000)
    assert len(world.transport.sent) == 1
    world.run(MINUTE)
    assert len(world.transport.sent) == 2


def test_ephemeral_messages_are_never_asked_for_or_sent_again(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.send(ephemeral=True)
    world.run(3 * MINUTE)
    assert len(world.transport.sent) == 1


def test_a_store_that_is_down_sends_nothing_again_and_is_asked_the_next_time(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    asked = Asked(world)
    asked.down = True
    request_id = world.send()
    world.run(2 * MINUTE)
    assert len(world.transport.sent) == 1
    assert not world.record(request_id).stored
    asked.down = False
    world.run(MINUTE)
    assert world.record(request_id).stored


def test_a_store_that_always_gives_a_cursor_is_left_after_a_bounded_number_of_pages(
    new_world: Callable[..., World],
) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    asked = Asked(world)
    turns = iter(range(10**6))
    asked.inner = _Endless(turns)
    world.run(MINUTE)
    assert len(asked.queries) <= 100


class _Endless:
    def __init__(self, turns: object) -> None:
        self.turns = turns

    def query(self, query: StoreQuery) -> StorePage:
        return StorePage((), cursor=next(self.turns).to_bytes(32, "big"))  # type: ignore[call-overload]


def test_history_adds_what_the_store_has_as_stored_records(world: World) -> None:
    start = world.clock.now_ns()
    messages = []
    for number in range(120):
        world.clock.advance(10)
        messages.append(world.arrives(b"%d" % number))
    found = world.node.history([CONTENT, OTHER], start, world.clock.now_ns())
    assert [record.message for record in found] == messages, "every page, oldest first"
    assert all(record.stored and not record.received for record in found)
    assert world.node.get_by_content_topic(CONTENT) == found
    assert world.names().count("message:stored") == 120
    assert world.node.history([CONTENT], start, world.clock.now_ns()) == found, "a second time changes nothing"
    assert world.names().count("message:stored") == 120


def test_history_marks_what_is_known_and_keeps_the_rest_of_the_record(world: World) -> None:
    request_id = world.send()
    world.run()
    (record,) = world.node.history([CONTENT])
    assert (record.request_id, record.sent, record.stored) == (request_id, True, True)


def test_history_is_bounded_in_time_and_number(world: World) -> None:
    for number in range(5):
        world.clock.advance(1)
        world.arrives(b"%d" % number)
    end = world.clock.now_ns()
    assert len(world.node.history([CONTENT], end, end)) == 1
    assert len(world.node.history([CONTENT], limit=3)) == 3


def test_history_refuses_what_is_not_what_it_says(world: World) -> None:
    asked = Asked(world)
    world.arrives()

    class Lying:
        def query(self, query: StoreQuery) -> StorePage:
            page = asked.inner.query(query)
            other = WakuMessage(b"forged", CONTENT, timestamp=1)
            forged = tuple(replace(entry, message=other, verified=False) for entry in page.entries)
            return StorePage(forged)

    world.transport.store = Lying()
    assert world.node.history([CONTENT]) == []
    assert world.node.get_by_content_topic(CONTENT) == []


def test_history_of_a_store_that_is_down_says_so(world: World) -> None:
    world.transport.store = None
    with pytest.raises(StoreUnavailable):
        world.node.history([CONTENT])


SHARDED = (CONTENT, "/reliable-channel/1/lobby/proto")


def test_with_several_shards_each_content_topic_is_confirmed_on_its_own() -> None:
    places = Autosharding(1, 8)
    made = make_background_subscription(
        config(shards=tuple(range(8)), confirm_content_topics=SHARDED), places.topic_for, now=0
    )
    assert made is not None
    assert made.topics == {(places.topic_for(topic), topic) for topic in SHARDED}
    assert len({pubsub_topic for pubsub_topic, _ in made.topics}) == 2, "else this shows nothing"


def test_a_content_topic_without_a_place_here_is_confirmed_on_every_shard() -> None:
    made = make_background_subscription(
        config(shards=(0, 1), confirm_content_topics=(CONTENT,)), lambda topic: "/waku/2/rs/9/9", now=0
    )
    assert made is not None
    assert {pubsub_topic for pubsub_topic, _ in made.topics} == {"/waku/2/rs/1/0", "/waku/2/rs/1/1"}


class NoHashes(Asked):
    """A store that answers by topic and not for hashes, as go-waku does when it is not told whom to ask."""

    def query(self, query: StoreQuery) -> StorePage:
        if query.hashes:
            self.queries.append(query)
            raise StoreUnavailable("a peer is required")
        return super().query(query)


def test_where_no_store_answers_for_hashes_a_complete_query_by_topic_decides(
    new_world: Callable[..., World],
) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda message: False
    asked = NoHashes(world)
    world.send()
    world.run(2 * MINUTE)
    assert any(query.hashes for query in asked.queries)
    assert len(world.transport.sent) == 2


def test_where_the_query_by_topic_was_cut_and_no_store_answers_for_hashes_nothing_is_missing(
    new_world: Callable[..., World],
) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    world.network.store_keeps = lambda message: False
    asked = NoHashes(world)
    asked.inner = _Endless(iter(range(10**6)))
    world.send()
    world.run(2 * MINUTE)
    assert any(query.hashes for query in asked.queries)
    assert len(world.transport.sent) == 1


def test_a_message_that_only_its_hash_finds_is_stored_and_not_sent_again(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True, confirm_content_topics=(CONTENT,))
    request_id = world.send(timestamp=1)  # long before any time that is asked for
    world.run(MINUTE + 1_000)
    assert world.record(request_id).stored
    assert len(world.transport.sent) == 1

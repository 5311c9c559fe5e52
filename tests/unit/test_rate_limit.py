"""The rate limit (protocol.md §6): epochs, the first-segment rule, ordered delay, drops, what survives a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.errors import ConfigurationError
from reliable_channel.rate_limit import (
    Delayed,
    Dispatch,
    EphemeralDropped,
    LimitApproaching,
    RateLimitConfig,
    RateLimitManager,
    RateLimitSnapshot,
    Traffic,
)

FIRST, FURTHER, EPHEMERAL, CONTROL = Traffic


def config(limit: int = 2, **others) -> RateLimitConfig:
    return RateLimitConfig(enabled=True, epoch_size_ms=100, messages_per_epoch=limit, **others)


def dispatched(events):
    return [event.item for event in events if isinstance(event, Dispatch)]


def test_the_seeds_defaults():
    assert RateLimitConfig() == RateLimitConfig(False, 600_000, 1, False)


@pytest.mark.parametrize("traffic", Traffic)
def test_switched_off_everything_is_dispatched_at_once(traffic):
    manager = RateLimitManager(RateLimitConfig(enabled=False, messages_per_epoch=1))
    for item in range(5):
        assert manager.submit(item, traffic, 0) == [Dispatch(item)]
    assert manager.next_due() is None


def test_only_the_first_segment_of_a_message_counts():
    manager = RateLimitManager(config(limit=1))
    assert dispatched(manager.submit("a0", FIRST, 10, "a")) == ["a0"]
    assert dispatched(manager.submit("a1", FURTHER, 10, "a")) == ["a1"]
    assert dispatched(manager.submit("a2", FURTHER, 10, "a")) == ["a2"]
    assert manager.used == 1


def test_at_the_limit_dispatch_waits_for_the_next_epoch_in_order():
    manager = RateLimitManager(config(limit=1))
    manager.submit("a0", FIRST, 10, "a")
    assert manager.submit("b0", FIRST, 20, "b") == [Delayed("b0", 100)]
    assert manager.submit("b1", FURTHER, 20, "b") == [Delayed("b1", 100)]
    assert manager.submit("c0", FIRST, 30, "c") == [Delayed("c0", 100)]
    assert dispatched(manager.submit("a1", FURTHER, 40, "a")) == ["a1"]
    assert (manager.waiting, manager.next_due()) == (3, 100)
    assert manager.tick(99) == []
    assert dispatched(manager.tick(100)) == ["b0", "b1"]
    assert dispatched(manager.submit("b2", FURTHER, 101, "b")) == ["b2"]
    assert dispatched(manager.tick(199)) == []
    assert dispatched(manager.tick(205)) == ["c0"]
    assert manager.next_due() is None


def test_what_waits_goes_first_even_when_a_new_epoch_is_noticed_by_a_submission():
    manager = RateLimitManager(config(limit=2))
    for name in "abcd":
        manager.submit(name, FIRST, 0, name)
    assert dispatched(manager.submit("e", FIRST, 100, "e")) == ["c", "d"]
    assert manager.waiting == 1


@given(st.lists(st.tuples(st.sampled_from([FIRST, FURTHER]), st.integers(0, 4), st.integers(0, 60)), max_size=40))
def test_nothing_but_ephemeral_messages_is_dropped_and_every_message_keeps_its_order(steps):
    manager, now, submitted, out, per_epoch = RateLimitManager(config(limit=2)), 0, [], [], {}
    begun: set[int] = set()

    def take(events):
        for item in dispatched(events):
            out.append(item)
            if item[1] is FIRST:
                per_epoch[now // 100] = per_epoch.get(now // 100, 0) + 1

    for number, (traffic, message, pause) in enumerate(steps):
        now += pause
        traffic = FIRST if message not in begun else traffic if traffic is FURTHER else FURTHER
        begun.add(message)
        item = (message, traffic, number)
        submitted.append(item)
        take(manager.submit(item, traffic, now, str(message)))
    while (due := manager.next_due()) is not None:
        assert due > now
        now = due
        take(manager.tick(now))
    assert sorted(out) == sorted(submitted)
    for message in begun:
        assert [item for item in out if item[0] == message] == [item for item in submitted if item[0] == message]
    assert [item for item in out if item[1] is FIRST] == [item for item in submitted if item[1] is FIRST]
    assert max(per_epoch.values(), default=0) <= 2


@pytest.mark.parametrize(("used", "drops"), [(0, False), (8, False), (9, True), (10, True)])
def test_ephemeral_messages_are_dropped_from_90_percent_on(used, drops):
    manager = RateLimitManager(config(limit=10))
    for item in range(used):
        manager.submit(item, FIRST, 0, str(item))
    events = manager.submit("typing", EPHEMERAL, 0)
    assert (EphemeralDropped("typing", used, 10) in events) is drops
    assert ("typing" in dispatched(events)) is not drops
    assert manager.used == used + (not drops)


def test_an_ephemeral_message_counts_at_its_dispatch():
    manager = RateLimitManager(config(limit=1))
    assert dispatched(manager.submit("typing", EPHEMERAL, 0)) == ["typing"]
    assert manager.submit("a0", FIRST, 0, "a") == [Delayed("a0", 100)]


def test_the_approach_of_the_limit_is_told_once_per_epoch():
    manager = RateLimitManager(config(limit=10))
    events = [event for n in range(10) for event in manager.submit(n, FIRST, 0, str(n))]
    assert [event for event in events if isinstance(event, LimitApproaching)] == [LimitApproaching(9, 10, 100)]
    events = [event for n in range(9) for event in manager.submit(n, FIRST, 100, str(n))]
    assert events[-1] == LimitApproaching(9, 10, 200)


def test_control_traffic_is_free_unless_it_is_to_count():
    free = RateLimitManager(config(limit=1))
    free.submit("a0", FIRST, 0, "a")
    assert free.submit("retransmission", CONTROL, 0, "a") == [Dispatch("retransmission")]
    counted = RateLimitManager(config(limit=1, count_control_traffic=True))
    counted.submit("sync", CONTROL, 0)
    assert counted.submit("a0", FIRST, 0, "a") == [Delayed("a0", 100)]
    assert counted.submit("repair", CONTROL, 0) == [Delayed("repair", 100)]
    assert dispatched(counted.tick(100)) == ["a0"]
    assert dispatched(counted.tick(200)) == ["repair"]


def test_the_count_survives_a_restart_inside_the_same_epoch():
    before = RateLimitManager(config(limit=2))
    before.submit("a", FIRST, 110, "a")
    before.submit("b", FIRST, 120, "b")
    again = RateLimitManager(config(limit=2), before.snapshot())
    assert again.submit("c", FIRST, 130, "c") == [Delayed("c", 200)]
    assert dispatched(again.tick(200)) == ["c"]
    assert again.snapshot() == RateLimitSnapshot(2, 100, 1, False)


def test_the_count_does_not_survive_the_epoch():
    before = RateLimitManager(config(limit=1))
    before.submit("a", FIRST, 110, "a")
    again = RateLimitManager(config(limit=1), before.snapshot())
    assert dispatched(again.submit("b", FIRST, 200, "b")) == ["b"]


def test_the_warning_is_not_repeated_by_a_restart():
    before = RateLimitManager(config(limit=1))
    before.submit("a", FIRST, 110, "a")
    again = RateLimitManager(config(limit=1), before.snapshot())
    again.submit("b", FIRST, 120, "b")
    assert not [event for event in again.tick(130) if isinstance(event, LimitApproaching)]


def test_a_changed_epoch_size_gives_no_room_that_was_used():
    before = RateLimitManager(config(limit=1))
    before.submit("a", FIRST, 110, "a")
    again = RateLimitManager(RateLimitConfig(enabled=True, epoch_size_ms=1_000), before.snapshot())
    assert again.submit("b", FIRST, 150, "b") == [Delayed("b", 1_000)]


def test_a_clock_set_back_gives_no_room():
    manager = RateLimitManager(config(limit=1))
    manager.submit("a", FIRST, 250, "a")
    assert manager.submit("b", FIRST, 50, "b") == [Delayed("b", 300)]


def test_a_cancelled_message_leaves_the_queue_and_holds_nobody_up():
    manager = RateLimitManager(config(limit=1))
    manager.submit("a0", FIRST, 0, "a")
    for item, traffic, message in [("b0", FIRST, "b"), ("b1", FURTHER, "b"), ("c0", FIRST, "c")]:
        manager.submit(item, traffic, 0, message)
    assert manager.cancel("b") == ["b0", "b1"]
    assert manager.cancel("b") == []
    assert dispatched(manager.tick(100)) == ["c0"]


@pytest.mark.parametrize(
    "wrong", [{"epoch_size_ms": 0}, {"messages_per_epoch": 0}, {"approaching_share": 0.0}, {"approaching_share": 1.5}]
)
def test_wrong_settings_are_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RateLimitConfig(**wrong)

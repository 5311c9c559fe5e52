"""The rate limit (17/WAKU2-RLN-RELAY): epochs, what counts, whose turn it is, drops, what survives a restart."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.channel import MemoryPersistence
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.core.rate_limit import (
    Admitted,
    Delayed,
    EphemeralDropped,
    LimitApproaching,
    RateLimitConfig,
    RateLimitManager,
    RateLimitSnapshot,
    Traffic,
)
from reliable_channel.transport.dispatch_limit import CountFile, DispatchLimit, KeptCount

FIRST, FURTHER, EPHEMERAL, CONTROL = Traffic


def config(limit: int = 2, **others) -> RateLimitConfig:
    return RateLimitConfig(enabled=True, epoch_size_ms=100, messages_per_epoch=limit, **others)


def dispatched(events):
    return [event.item for event in events if isinstance(event, Admitted)]


def test_it_follows_the_node_by_default_and_has_the_specified_epoch():
    assert RateLimitConfig() == RateLimitConfig(None, 600_000, 1, "envelopes", 0.9, 0.9)


@pytest.mark.parametrize("traffic", Traffic)
@pytest.mark.parametrize("enabled", [None, False])
def test_switched_off_everything_is_dispatched_at_once(traffic, enabled):
    manager = RateLimitManager(RateLimitConfig(enabled=enabled, messages_per_epoch=1))
    for item in range(5):
        assert manager.submit(item, traffic, 0) == [Admitted(item)]
    assert manager.next_due() is None


def test_every_envelope_counts():
    manager = RateLimitManager(config(limit=3))
    assert dispatched(manager.submit("a0", FIRST, 10)) == ["a0"]
    assert dispatched(manager.submit("a1", FURTHER, 10)) == ["a1"]
    assert dispatched(manager.submit("a0 again", CONTROL, 10)) == ["a0 again"]
    assert manager.submit("sync", CONTROL, 10) == [Delayed("sync", 100)]
    assert manager.used == 3


def test_by_the_specified_rule_only_first_segments_and_ephemeral_messages_count():
    manager = RateLimitManager(config(limit=1, counts="messages"))
    assert dispatched(manager.submit("a0", FIRST, 10)) == ["a0"]
    assert dispatched(manager.submit("a1", FURTHER, 10)) == ["a1"]
    assert dispatched(manager.submit("a0 again", CONTROL, 10)) == ["a0 again"]
    assert manager.used == 1
    assert manager.submit("b0", FIRST, 20) == [Delayed("b0", 100)]
    assert manager.submit("b1", FURTHER, 20) == [Delayed("b1", 100)]
    assert dispatched(manager.submit("sync", CONTROL, 20)) == ["sync"]
    assert manager.submit("c0", FIRST, 30) == [Delayed("c0", 100)]
    assert manager.tick(99) == []
    assert dispatched(manager.tick(100)) == ["b0", "b1"]
    assert dispatched(manager.tick(205)) == ["c0"]
    assert manager.next_due() is None


def test_content_goes_before_control_that_has_waited_longer():
    manager = RateLimitManager(config(limit=1))
    manager.submit("first", FIRST, 0)
    for item, traffic in [("sync", CONTROL), ("again", CONTROL), ("b0", FIRST), ("b1", FURTHER)]:
        assert manager.submit(item, traffic, 10) == [Delayed(item, 100)]
    turns = [dispatched(manager.tick(now)) for now in range(100, 500, 100)]
    assert turns == [["b0"], ["b1"], ["sync"], ["again"]]


@given(content=st.integers(1, 30), control=st.integers(1, 10), limit=st.integers(1, 7))
def test_while_content_waits_control_has_every_fourth_place(content, control, limit):
    manager = RateLimitManager(config(limit))
    events = []
    for items, traffic in ((content, FIRST), (control, CONTROL)):
        for _ in range(items):
            events += manager.submit(traffic, traffic, 0)
    for epoch in range(1, content + control + 1):
        events += manager.tick(epoch * 100)
    order = "".join("c" if item is CONTROL else "m" for item in dispatched(events))
    assert (order.count("m"), order.count("c")) == (content, control)
    while_both_wait = order[limit : min(order.rindex("m"), order.rindex("c")) + 1]
    assert "mmmmm" not in while_both_wait
    assert "cc" not in while_both_wait


def test_what_waits_goes_first_even_when_a_new_epoch_is_noticed_by_a_submission():
    manager = RateLimitManager(config(limit=2))
    for name in "abcd":
        manager.submit(name, FIRST, 0)
    assert dispatched(manager.submit("e", FIRST, 100)) == ["c", "d"]
    assert manager.waiting == 1


STEPS = st.lists(st.tuples(st.sampled_from([FIRST, FURTHER, CONTROL, EPHEMERAL]), st.integers(0, 60)), max_size=40)


@pytest.mark.parametrize("counts", ["envelopes", "messages"])
@given(steps=STEPS, limit=st.integers(1, 4))
def test_only_ephemeral_messages_are_dropped_each_kind_keeps_its_order_and_no_epoch_is_overdrawn(counts, steps, limit):
    manager, now, out, gone, per_epoch = RateLimitManager(config(limit=limit, counts=counts)), 0, [], [], {}
    counted = {FIRST, FURTHER, CONTROL, EPHEMERAL} if counts == "envelopes" else {FIRST, EPHEMERAL}

    def take(events):
        for event in events:
            if isinstance(event, EphemeralDropped):
                gone.append(event.item)
            if isinstance(event, Admitted):
                out.append(event.item)
                if event.item[0] in counted:
                    used = per_epoch[now // 100] = per_epoch.get(now // 100, 0) + 1
                    # The last slot of an epoch is never an ephemeral message's.
                    assert event.item[0] is not EPHEMERAL or used < limit

    submitted = []
    for number, (traffic, pause) in enumerate(steps):
        now += pause
        submitted.append((traffic, number))
        take(manager.submit((traffic, number), traffic, now))
    while (due := manager.next_due()) is not None:
        assert due > now
        now = due
        take(manager.tick(now))
    assert sorted(out + gone) == sorted(submitted)
    assert {traffic for traffic, _ in gone} <= {EPHEMERAL}
    for kinds in ({FIRST, FURTHER}, {CONTROL}, {EPHEMERAL}):
        numbers = [number for traffic, number in out if traffic in kinds]
        assert numbers == sorted(numbers)
    assert max(per_epoch.values(), default=0) <= limit


@pytest.mark.parametrize(("used", "drops"), [(0, False), (8, False), (9, True), (10, True)])
def test_ephemeral_messages_are_dropped_from_90_percent_on(used, drops):
    manager = RateLimitManager(config(limit=10))
    for item in range(used):
        manager.submit(item, FIRST, 0)
    events = manager.submit("typing", EPHEMERAL, 0)
    assert (EphemeralDropped("typing", used, 10) in events) is drops
    assert ("typing" in dispatched(events)) is not drops
    assert manager.used == used + (not drops)


@pytest.mark.parametrize(
    ("limit", "share", "room"), [(1, 0.9, 0), (2, 0.9, 1), (2, 1.0, 1), (10, 1.0, 9), (10, 0.5, 5)]
)
def test_the_share_for_ephemeral_messages_is_a_setting_and_the_last_slot_is_never_theirs(limit, share, room):
    manager = RateLimitManager(config(limit=limit, ephemeral_share=share))
    out = [item for n in range(20) for item in dispatched(manager.submit(n, EPHEMERAL, 0))]
    assert len(out) == room
    assert dispatched(manager.submit("content", FIRST, 0)) == ["content"]


def test_an_ephemeral_message_does_not_pass_what_waits():
    manager = RateLimitManager(config(limit=5, counts="messages"))
    for item in range(6):
        manager.submit(item, FIRST, 0)
    assert manager.waiting == 1
    assert manager.submit("typing", EPHEMERAL, 10) == [EphemeralDropped("typing", 5, 5)]


def test_the_approach_of_the_limit_is_told_once_per_epoch():
    manager = RateLimitManager(config(limit=10))
    events = [event for n in range(10) for event in manager.submit(n, FIRST, 0)]
    assert [event for event in events if isinstance(event, LimitApproaching)] == [LimitApproaching(9, 10, 100)]
    events = [event for n in range(9) for event in manager.submit(n, FIRST, 100)]
    assert events[-1] == LimitApproaching(9, 10, 200)


def test_the_count_survives_a_restart_inside_the_same_epoch():
    before = RateLimitManager(config(limit=2))
    before.submit("a", FIRST, 110)
    before.submit("b", FIRST, 120)
    again = RateLimitManager(config(limit=2), before.snapshot())
    assert again.submit("c", FIRST, 130) == [Delayed("c", 200)]
    assert dispatched(again.tick(200)) == ["c"]
    assert again.snapshot() == RateLimitSnapshot(2, 100, 1, False)


def test_the_count_does_not_survive_the_epoch():
    before = RateLimitManager(config(limit=1))
    before.submit("a", FIRST, 110)
    again = RateLimitManager(config(limit=1), before.snapshot())
    assert dispatched(again.submit("b", FIRST, 200)) == ["b"]


def test_two_that_share_a_count_spend_it_together():
    one, other = RateLimitManager(config(limit=2)), RateLimitManager(config(limit=2))
    assert dispatched(one.submit("a", FIRST, 110)) == ["a"]
    other.adopt(one.snapshot())
    assert dispatched(other.submit("b", FIRST, 120)) == ["b"]
    one.adopt(other.snapshot())
    assert one.submit("c", FIRST, 130) == [Delayed("c", 200)]
    other.adopt(RateLimitSnapshot(0, 100, 0, False))  # an older count takes nothing back
    assert other.submit("d", FIRST, 140) == [Delayed("d", 200)]


def test_the_warning_is_not_repeated_by_a_restart():
    before = RateLimitManager(config(limit=1))
    before.submit("a", FIRST, 110)
    again = RateLimitManager(config(limit=1), before.snapshot())
    again.submit("b", FIRST, 120)
    assert not [event for event in again.tick(130) if isinstance(event, LimitApproaching)]


def test_a_changed_epoch_size_gives_no_room_that_was_used():
    before = RateLimitManager(config(limit=1))
    before.submit("a", FIRST, 110)
    again = RateLimitManager(RateLimitConfig(enabled=True, epoch_size_ms=1_000), before.snapshot())
    assert again.submit("b", FIRST, 150) == [Delayed("b", 1_000)]


def test_a_clock_set_back_into_an_epoch_that_was_used_sends_nothing_in_it():
    """It sent what the later epoch had room for, and relays counted three envelopes of two."""
    manager = RateLimitManager(config(limit=2))
    for now in (110, 120, 201):
        assert dispatched(manager.submit(now, FIRST, now)) == [now]
    assert manager.submit("back", FIRST, 190) == [Delayed("back", 200)]
    assert not manager.is_due(195)
    assert manager.is_due(200)
    assert dispatched(manager.tick(200)) == ["back"]


@pytest.mark.parametrize(("before", "until"), [(150, 200), (250, 100)])
def test_a_clock_set_back_gives_no_room(before, until):
    manager = RateLimitManager(config(limit=1))
    manager.submit("a", FIRST, before)
    assert manager.submit("b", FIRST, 50) == [Delayed("b", until)]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_clock_that_was_years_ahead_costs_one_epoch_and_not_years(is_stored):
    limit: DispatchLimit[str] = DispatchLimit(config(limit=1), count := KeptCount(MemoryPersistence()))
    assert dispatched(limit.submit("in the future", FIRST, 10**12)) == ["in the future"]
    limit.submit("waits", FIRST, 10**12)
    if is_stored:
        limit = DispatchLimit(config(limit=1), count)
        limit.submit("waits", FIRST, 1_010)
    assert dispatched(limit.tick(1_020)) == []
    assert dispatched(limit.tick(1_110)) == ["waits"]
    limit.submit("waits as well", FIRST, 1_120)
    assert dispatched(limit.tick(1_190)) == []
    assert dispatched(limit.tick(1_210)) == ["waits as well"]


def test_a_count_that_cannot_be_stored_loses_nothing_that_waits_and_sends_nothing_twice(monkeypatch):
    """What the new epoch admitted was neither dispatched nor reported, and waited no longer."""
    limit: DispatchLimit[str] = DispatchLimit(config(limit=1), count := KeptCount(MemoryPersistence()))
    for item in ("a", "b", "c"):
        limit.submit(item, FIRST, 0)

    def fail(_snapshot):
        raise EnvironmentFault("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(count, "write", fail)
        with pytest.raises(EnvironmentFault):
            limit.tick(100)
        with pytest.raises(EnvironmentFault):
            limit.submit("d", FIRST, 100)
    assert dispatched(limit.submit("d", FIRST, 100)) == ["b"]
    assert [dispatched(limit.tick(now)) for now in (200, 300, 400)] == [["c"], ["d"], []]


def test_a_submit_copies_nothing_that_waits(monkeypatch):
    """With 20 000 waiting, each further one took a fifth of a millisecond."""
    limit: DispatchLimit[int] = DispatchLimit(config(limit=1))
    monkeypatch.setattr(RateLimitManager, "copy", lambda *_: pytest.fail("it copies its queues"))
    for item in range(3):
        limit.submit(item, FIRST, 0)
    assert limit.waiting == 2


@given(
    st.lists(st.tuples(st.sampled_from(Traffic), st.integers(0, 500)), max_size=20),
    st.one_of(st.none(), st.sampled_from(Traffic)),
    st.integers(0, 900),
)
def test_an_undone_submit_or_tick_leaves_what_was_there(before, traffic, now):
    manager = RateLimitManager(config(limit=3))
    for number, (kind, at) in enumerate(before):
        manager.submit(number, kind, at)
    mark = manager.mark()
    kept = {name: copy(value) for name, value in vars(manager).items() if name != "_taken"}
    if traffic is None:
        manager.tick(now)
    else:
        manager.submit(99, traffic, now)
    manager.undo(mark)
    assert {name: value for name, value in vars(manager).items() if name != "_taken"} == kept


def test_what_was_taken_before_the_mark_does_not_wait_again():
    """Ctrl-C may come between the mark and the submit."""
    manager = RateLimitManager(config(limit=1))
    for item in (1, 2, 3):
        manager.submit(item, FIRST, 0)
    assert dispatched(manager.tick(100)) == [2]
    manager.undo(manager.mark())
    assert dispatched(manager.tick(200)) == [3]


def test_a_count_file_is_on_disk_before_it_replaces_the_last_one(monkeypatch, tmp_path):
    """After a power cut it could be empty, and an empty one stops the dispatch until somebody moves it away."""
    count = CountFile(tmp_path / "count.json")
    count.write(before := RateLimitSnapshot(1, 100, 1, False))

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("os.fsync", fail)
        count.write(RateLimitSnapshot(1, 100, 2, False))
    assert count.read() == before
    assert [file.name for file in tmp_path.iterdir()] == ["count.json"]


def test_what_waits_can_be_taken_back():
    manager = RateLimitManager(config(limit=1))
    for item, traffic in [("a0", FIRST), ("sync", CONTROL), ("b0", FIRST)]:
        manager.submit(item, traffic, 0)
    assert manager.drain() == ["b0", "sync"]
    assert manager.next_due() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch_size_ms": 0},
        {"messages_per_epoch": 0},
        {"approaching_share": 0.0},
        {"approaching_share": 1.5},
        {"ephemeral_share": 0.0},
        {"counts": "bytes"},
    ],
)
def test_wrong_settings_are_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RateLimitConfig(**wrong)


def test_what_waits_can_be_withdrawn_and_is_not_dispatched():
    manager = RateLimitManager(config(limit=1))
    for item, traffic in [("a", FIRST), ("b", FIRST), ("sync", CONTROL)]:
        manager.submit(item, traffic, 10)
    assert manager.withdraw(lambda item: item == "b")
    assert manager.withdraw(lambda item: item == "sync")
    assert not manager.withdraw(lambda item: item in "ab")
    assert manager.waiting == 0
    assert dispatched(manager.tick(100)) == []

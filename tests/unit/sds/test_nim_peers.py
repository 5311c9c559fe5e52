"""Our participants beside nim-sds peers: repairs are answered, sync messages are no losses, and they stay few."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from reliable_channel.core.sds import (
    Acknowledged,
    Delivered,
    DeliveryError,
    DependencyLost,
    MissingDependency,
    OutgoingReason,
    SdsChannel,
    SdsParameters,
    SdsStep,
    SendDelivered,
)
from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily
from tests.support.nim_sds import REPAIR_T_MAX_MS, NimSds

T0 = 1_800_000_000_000
NIM = SdsParameters(before_observation=False).in_family(WireFamily.NIM)


def opened(name: str | None) -> SdsChannel:
    channel = SdsChannel("talk", name, NIM)
    channel.tick(T0)
    return channel


def messages(step: SdsStep) -> list[SdsMessage]:
    return [outgoing.message for outgoing in step.outgoing]


@pytest.mark.parametrize("number", range(6))
def test_a_message_that_only_a_nim_peer_has_is_answered(number: int) -> None:
    """nim-sds sets the time of its answer anew at every request; whoever asks again sooner is never answered."""
    nim, bob, alice = NimSds("talk", "nim"), opened("bob"), opened("alice")
    wanted = alice.send(b"wanted %d" % number, T0 + 1_000).outgoing[0].message
    nim.receive(wanted, T0 + 1_000)
    bob.receive(nim.wrap(b"names it", "n1", T0 + 2_000), T0 + 2_000)
    assert bob.missing_ids() == (wanted.message_id,)
    now, asked = T0 + 2_000, 0
    while bob.missing_ids() and now < T0 + 3_600_000:
        now += 1_000
        for message in messages(bob.tick(now)):
            asked += any(entry.message_id == wanted.message_id for entry in message.repair_request)
            nim.receive(message, now)
        if now % 5_000 == 0:
            for answer in nim.sweep_repairs(now):
                bob.receive(answer, now)
    assert (bob.missing_ids(), asked) == ((), 1)


def test_a_request_without_an_answer_is_repeated_after_the_longest_answer_time() -> None:
    bob = opened("bob")
    bob.receive(message("n1", "lost"), T0 + 1_000)
    times = []
    for second in range(2, 2_400):
        now = T0 + second * 1_000
        times += [now for one in messages(bob.tick(now)) if one.repair_request]
    assert len(times) >= 2
    assert all(later - earlier >= REPAIR_T_MAX_MS for earlier, later in pairwise(times))


def test_a_request_of_another_participant_puts_an_own_one_off() -> None:
    bob = opened("bob")
    bob.receive(message("n1", "lost"), T0 + 1_000)
    asking = SdsMessage(
        "carol", "c1", "talk", T0 // 1_000 + 5, repair_request=(HistoryEntry("lost", None, "nim"),), content=b"x"
    )
    bob.receive(asking, T0 + 2_000)
    bob.receive(message("n2", "lost"), T0 + 3_000)
    asked = [one for second in range(4, 300) for one in messages(bob.tick(T0 + second * 1_000)) if one.repair_request]
    assert asked == []


def message(sds_id: str, *history: str, sender_id: str = "nim") -> SdsMessage:
    named = tuple(HistoryEntry(one, None, sender_id) for one in history)
    return SdsMessage(sender_id, sds_id, "talk", T0 // 1_000 + 3, named, None, (), b"text " + sds_id.encode())


@pytest.mark.parametrize("name", ["bob", None], ids=["participant", "observer"])
def test_a_sync_message_that_never_came_is_recognised_by_its_id(name: str | None) -> None:
    nim, alice, bob = NimSds("talk", "nim"), opened("alice"), opened(name)
    hello = alice.send(b"hello", T0 + 1_000).outgoing[0].message
    nim.receive(hello, T0 + 1_000)
    bob.receive(hello, T0 + 1_000)
    (sync,) = messages(alice.send_sync(T0 + 2_000))
    nim.receive(sync, T0 + 2_000)
    naming = nim.wrap(b"names both", "n1", T0 + 3_000)
    assert sync.message_id in [entry.message_id for entry in naming.causal_history]
    step = bob.receive(naming, T0 + 3_000)
    assert [event.message_id for event in step.events if isinstance(event, Delivered)] == ["n1"]
    assert not [event for event in step.events if isinstance(event, MissingDependency)]


def test_the_search_for_sync_messages_is_bounded() -> None:
    entries = tuple(HistoryEntry(f"{number:064x}", None, "alice") for number in range(1_000))
    evil = SdsMessage("mallory", "m1", "talk", T0 // 1_000 + 3, entries, None, (), b"text")
    calls: Counter[str] = Counter()
    bob = opened(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reliable_channel.core.sds.receiving.is_sync_id", lambda *_: calls.update(["search"]) is not None)
        bob.receive(evil, T0 + 1_000)
    assert calls["search"] <= 20


def test_a_sync_message_is_kept_and_answered() -> None:
    """nim-sds asks for a sync message as for content, and what names it waits there until somebody answers."""
    nim, alice = NimSds("talk", "nim"), opened("alice")
    alice.receive(nim.wrap(b"hello", "n1", T0 + 1_000), T0 + 1_000)
    (sync,) = messages(alice.send_sync(T0 + 2_000))
    asking = SdsMessage(
        "nim",
        "n2",
        "talk",
        T0 // 1_000 + 5,
        repair_request=(HistoryEntry(sync.message_id, None, "alice"),),
        content=b"?",
    )
    alice.receive(asking, T0 + 3_000)
    answers = [
        each.message
        for second in range(4, 310)
        for each in alice.tick(T0 + second * 1_000).outgoing
        if each.reason is OutgoingReason.REPAIR
    ]
    assert [answer.message_id for answer in answers] == [sync.message_id]


def test_an_observer_waits_longer_than_a_request_and_its_answer_may_take() -> None:
    observer = opened(None)
    observer.receive(message("n1", "lost"), T0 + 1_000)
    early = observer.tick(T0 + 2 * REPAIR_T_MAX_MS)
    late = observer.tick(T0 + 2 * REPAIR_T_MAX_MS + 120_000)
    assert [[e.message_id for e in step.events if isinstance(e, DependencyLost)] for step in (early, late)] == [
        [],
        ["lost"],
    ]


def test_copies_that_answer_others_cause_no_sync_messages() -> None:
    """A busy repair between nim-sds peers would make each of ours acknowledge every copy."""
    nim, bob = NimSds("talk", "nim"), opened("bob")
    first = nim.wrap(b"hello", "n1", T0 + 1_000)
    bob.receive(first, T0 + 1_000)
    sent = Counter(one.message_id for one in messages(bob.tick(T0 + 10_000)))
    assert len(sent) == 1, "the first copy is acknowledged soon"
    for number in range(20):
        bob.receive(first, T0 + 10_000 + number * 1_000)
        sent.update(one.message_id for one in messages(bob.tick(T0 + 10_500 + number * 1_000)))
    assert len(sent) == 1
    assert sds_message_id("bob", 1, b"") not in sent


def test_a_listening_peer_acknowledges_with_its_next_content_even_after_the_error() -> None:
    """nim-sds sends no sync messages by itself, so its silence says nothing about receipt."""
    nim, alice = NimSds("talk", "nim"), opened("alice")
    before = nim.wrap(b"here", "n0", T0 + 500)
    alice.receive(before, T0 + 500)
    sends = [alice.send(b"text %d" % number, T0 + 1_000 + number) for number in range(20)]
    sent = [each.message for step in sends for each in step.outgoing]
    for one in sent:
        nim.receive(one, T0 + 2_000)
    failed = alice.tick(T0 + 400_000).events
    assert len([event for event in failed if isinstance(event, DeliveryError)]) == len(sent)
    step = alice.receive(nim.wrap(b"still here", "n1", T0 + 400_000), T0 + 400_000)
    delivered = [event for event in step.events if isinstance(event, SendDelivered)]
    assert len(delivered) == len(sent)
    evidence = Counter(str(event.evidence) for event in step.events if isinstance(event, Acknowledged))
    assert evidence == {"causal_history": 10, "implied": 10}

"""What a channel remembers of what SDS accepted: bounded, in order, the same after a restore."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.pipeline.ack.accepted_messages import AcceptedMessage, AcceptedMessages, sds_key


def seen(sds_id: str, hash_: bytes = b"", *, sender: str = "alice", kind: str = "data") -> AcceptedMessage:
    return AcceptedMessage(
        sds_key(sds_id, sender), b"digest", "t", 1, 2, 3, kind, hash_, 0, None, None, -5, 10, "", True
    )


def messages(max_waiting: int = 100, max_parts: int = 100, max_settled: int = 16) -> AcceptedMessages:
    return AcceptedMessages(max_waiting, max_parts, max_settled)


def restored(of: AcceptedMessages) -> AcceptedMessages:
    proto = pb.ObserverStateProto()
    of.write(proto)
    again = messages()
    again.read(pb.ObserverStateProto.FromString(proto.SerializeToString()))
    return again


def test_what_was_seen_is_the_same_after_a_restore() -> None:
    some = messages()
    waiting, part, bare = seen("a"), seen("b", b"hash"), seen("c", kind="bare")
    for each in (waiting, part, bare):
        some.accept(each)
    for each in (part, bare):
        some.deliver(each)
    part.lost, part.late, part.copies = ("x", "y"), True, 3
    again = restored(restored(some))
    keys = [sds_key(sds_id, "alice") for sds_id in "abcd"]
    assert [again.get(key) for key in keys] == [waiting, part, bare, None]
    assert [key in again for key in keys] == [True, True, True, False]
    assert [again.is_settled(key) for key in keys] == [False, False, True, False]
    changed = again.get(sds_key("a", "alice"))
    assert changed is not None
    changed.copies += 1
    kept = restored(again).get(sds_key("a", "alice"))
    assert kept is not None and kept.copies == 2


def test_a_snapshot_encodes_only_what_was_used_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = AcceptedMessage.encode

    def note(message: AcceptedMessage) -> bytes:
        encoded.append(message.key)
        return encode(message)

    monkeypatch.setattr(AcceptedMessage, "encode", note)
    before = messages()
    for sds_id in ("used", "unused"):
        before.accept(seen(sds_id))
    restored(before)
    assert len(encoded) == 2
    used = before.get(sds_key("used", "alice"))
    assert used is not None
    used.copies = 7
    after = restored(before).get(sds_key("used", "alice"))
    assert encoded[2:] == [used.key]
    assert after is not None and after.copies == 7


def test_the_same_id_of_two_senders_is_two_messages() -> None:
    some = messages()
    some.accept(seen("a", b"aaaa"))
    some.accept(seen("a", b"bbbb", sender="mallory"))
    assert [found.entire_message_hash for s in ("alice", "mallory") if (found := some.get(sds_key("a", s)))] == [
        b"aaaa",
        b"bbbb",
    ]


def test_a_part_counts_for_its_own_hash_only_and_only_until_its_message_is_delivered() -> None:
    some = messages()
    part = seen("a", b"aaaa")
    some.accept(part)
    assert some.part(part.key, b"aaaa") is None, "not delivered"
    some.deliver(part)
    assert (some.part(part.key, b"aaaa"), some.part(part.key, b"bbbb")) == (part, None)
    some.settle(part)
    assert some.part(part.key, b"aaaa") is None and some.is_settled(part.key)


def test_every_stage_is_bounded_and_the_oldest_go_first() -> None:
    some = messages(4, 16, 8)
    for kind, name in (("data", "p"), ("bare", "s")):
        for number in range(40):
            delivered = seen(f"{name}{number}", kind=kind)
            some.accept(delivered)
            some.deliver(delivered)
    for number in range(40):
        some.accept(seen(f"w{number}"))
    for name, limit in (("w", 4), ("p", 16), ("s", 8)):
        kept = [number for number in range(40) if sds_key(f"{name}{number}", "alice") in some]
        assert kept == list(range(40 - len(kept), 40)) and limit <= len(kept) <= limit + limit // 8 + 1


@given(st.text(min_size=1, max_size=4), st.integers(1, 20))
def test_a_flood_of_invented_senders_costs_no_sender_that_is_known_longer(prefix: str, parts: int) -> None:
    some = AcceptedMessages(100, 100, 16)
    mine = [seen(f"a{number}", b"hash") for number in range(parts)]
    invented = [seen(f"x{number}", b"other", sender=f"{prefix}{number}") for number in range(500)]
    for each in [*mine, *invented]:
        some.accept(each)
        some.deliver(each, lambda: {"alice"})
    assert all(some.part(each.key, b"hash") for each in mine)


@given(st.lists(st.sampled_from(["alice", "bob", "mallory", "eve"]), max_size=200))
def test_whoever_has_no_more_than_an_equal_share_of_half_the_room_is_forgotten_for_nobody(senders: list[str]) -> None:
    some = messages(max_settled=16)
    for number, sender in enumerate(senders):
        each = seen(str(number), sender=sender, kind="bare")
        some.accept(each)
        some.deliver(each)
    kept = [some.is_settled(sds_key(str(number), sender)) for number, sender in enumerate(senders)]
    assert sum(kept) >= min(len(senders), 16)
    assert sum(kept) <= 16 + 16 // 8
    assert all(is_kept for is_kept, sender in zip(kept, senders, strict=True) if senders.count(sender) <= 8 // 4)

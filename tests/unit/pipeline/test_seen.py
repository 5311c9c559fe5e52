"""What a channel remembers of what it has seen: bounded, in order, the same after a restore."""

from __future__ import annotations

from reliable_channel.pipeline.ack.seen import Seen, SeenMessages
from reliable_channel.wire._pb import pipeline_state_pb2 as pb


def seen(sds_id: str, hash_: str = "") -> Seen:
    return Seen(sds_id, "t", 1, 2, 3, "alice", "data", hash_, 0, None, None, -5, 10, "")


def restored(messages: SeenMessages, max_waiting: int = 100, max_delivered: int = 16) -> SeenMessages:
    proto = pb.ObserverStateProto()
    messages.write(proto)
    again = SeenMessages(max_waiting, max_delivered)
    again.read(proto)
    return again


def test_what_was_seen_is_the_same_after_a_restore() -> None:
    messages = SeenMessages(100, 16)
    waiting, delivered = seen("a"), seen("b", "aGFzaA==")
    for each in (waiting, delivered):
        messages.add(each)
    messages.deliver(delivered)
    delivered.lost, delivered.late, delivered.copies = ("x", "y"), True, 3
    again = restored(restored(messages))
    assert [again.get(i) for i in ("a", "b", "c")] == [waiting, delivered, None]
    assert [i in again for i in ("a", "b", "c")] == [True, True, False]
    changed = again.get("a")
    assert changed is not None
    changed.copies += 1
    kept = restored(again).get("a")
    assert kept is not None and kept.copies == 2


def test_of_the_delivered_the_first_go_first_but_parts_of_what_waits_stay() -> None:
    messages = SeenMessages(100, 16)
    for number in range(40):
        messages.add(seen(f"m{number}", "open" if number == 1 else "done"))
    for number in reversed(range(30)):
        message = messages.get(f"m{number}")
        assert message is not None
        messages.deliver(message)
        messages.forget(lambda: {"open"})
        messages = restored(messages)
    kept = {number for number in range(40) if f"m{number}" in messages}
    assert kept >= {*range(16), *range(30, 40)}, "the last that were delivered, and all that wait"
    assert len(kept) <= 10 + 16 + 2
    for number in range(30, 50):
        messages.add(seen(f"n{number}"))
        messages.deliver(seen(f"n{number}"))
        messages.forget(lambda: {"open"})
    assert "m1" in messages and "m2" not in messages


def test_of_those_that_wait_the_first_goes_when_they_are_too_many() -> None:
    messages = SeenMessages(3, 16)
    for number in range(5):
        messages.add(seen(f"m{number}"))
    assert [f"m{number}" in messages for number in range(5)] == [False, False, True, True, True]

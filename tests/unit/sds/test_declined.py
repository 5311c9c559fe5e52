"""Content that its receiver cannot use: it counts as an acknowledgement of others, and for nothing else."""

from __future__ import annotations

from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.sds.events import Acknowledged, Delivered

NOW = 1_767_225_600_000


def test_a_declined_message_acknowledges_and_is_neither_acknowledged_nor_waited_for() -> None:
    alice, bob = SdsChannel("talk", "alice"), SdsChannel("talk", "bob")
    question = alice.send(b"question", NOW).outgoing[0].message
    bob.receive(question, NOW + 1)
    answer = bob.send(b"an answer that alice cannot use", NOW + 2).outgoing[0].message
    further = bob.send(b"what follows it", NOW + 3).outgoing[0].message

    step = alice.receive(answer, NOW + 4, declined=True)
    assert [e.message_id for e in step.events if isinstance(e, Acknowledged)] == [question.message_id]
    assert not [e for e in step.events if isinstance(e, Delivered)]
    followed = alice.receive(further, NOW + 5)
    delivered = [e.message_id for e in followed.events if isinstance(e, Delivered)]
    assert delivered == [further.message_id], "it waits for nothing"
    next_one = alice.send(b"next", NOW + 6).outgoing[0].message
    assert answer.message_id not in {entry.message_id for entry in next_one.causal_history}

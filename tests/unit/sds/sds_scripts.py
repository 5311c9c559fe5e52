"""Random runs of one channel: a pool of messages that name, acknowledge, ask for and contradict each other."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from reliable_channel.core.sds import SdsChannel, SdsParameters, SdsStep
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage
from tests.unit.sds.sds_network import CHANNEL, SMALL, T0

IDS = [f"m{number}" for number in range(14)]
SENDERS = ["alice", "bob", "carol", "dave"]


def filter_holding(ids: list[str]) -> bytes:
    words = bytearray(SMALL.byte_count)
    SMALL.insert(words, ids)
    return SMALL.encode(words)


@st.composite
def messages(draw: st.DrawFn) -> SdsMessage:
    number = draw(st.integers(0, len(IDS) - 1))
    kind = draw(st.sampled_from(["content"] * 6 + ["sync", "ephemeral"]))
    named = draw(st.lists(st.sampled_from(IDS[: number + 2]), max_size=3))
    held = draw(st.one_of(st.none(), st.lists(st.sampled_from(IDS), max_size=6)))
    asked = draw(st.lists(st.sampled_from(IDS), max_size=2))
    return SdsMessage(
        sender_id=SENDERS[number % 4] if draw(st.integers(0, 9)) else draw(st.sampled_from(SENDERS)),
        message_id=IDS[number] if kind == "content" else f"{kind}-{number}",
        channel_id=CHANNEL,
        lamport_timestamp=None if kind == "ephemeral" else T0 + number * 10,
        causal_history=tuple(HistoryEntry(one, b"h" * 32 if index else None, "bob") for index, one in enumerate(named)),
        bloom_filter=None if held is None else filter_holding(held),
        repair_request=tuple(HistoryEntry(one, None, "bob") for one in asked),
        content=None if kind == "sync" else b"content of %d" % draw(st.sampled_from([number] * 9 + [99])),
    )


@dataclass(frozen=True)
class Action:
    """One call; ``wait`` ms after the one before."""

    name: str
    wait: int
    message: SdsMessage | None = None
    count: int = 1
    id_verified: bool | None = None


actions = st.lists(
    st.one_of(
        st.builds(Action, st.just("receive"), st.integers(0, 3_000), messages()),
        st.builds(Action, st.just("receive"), st.integers(0, 3_000), messages(), id_verified=st.booleans()),
        st.builds(Action, st.just("send"), st.integers(0, 3_000), st.none(), st.integers(1, 3)),
        st.builds(Action, st.sampled_from(["tick", "sync", "sent", "ephemeral"]), st.integers(0, 90_000)),
        st.builds(Action, st.just("observe_sent"), st.integers(0, 3_000), messages()),
    ),
    max_size=40,
)

configs = st.builds(
    SdsParameters,
    filter_format=st.just(SMALL),
    timeout_for_lost_messages_ms=st.sampled_from([None, 0, 20_000, 60_000]),
    wait_for_sent=st.booleans(),
    before_observation=st.booleans(),
    unproven_id_ms=st.sampled_from([0, 5_000, 300_000]),
    max_log_entries=st.sampled_from([4, 10_000]),
    max_tracked=st.sampled_from([3, 1_000]),
    max_waiting=st.sampled_from([2, 1_000]),
    max_missing_per_sender=st.sampled_from([3, 1_000]),
    max_kept_bytes=st.sampled_from([2_000, 4_000_000]),
    max_finished_sends=st.sampled_from([1, 200]),
    max_remembered=st.sampled_from([2, 10_000]),
    max_participants=st.sampled_from([2, 1_000]),
    max_refetches_per_sweep=st.sampled_from([1, 200]),
    repair_response_groups=st.sampled_from([1, 2]),
)


def act(channel: SdsChannel, action: Action, now: int, number: int) -> SdsStep:
    """Do one action on a channel."""
    if action.name == "tick":
        return channel.tick(now)
    if action.name == "receive":
        assert action.message is not None
        return channel.receive(action.message, now, retrieval_hint=b"r" * 32, id_verified=action.id_verified)
    if channel.participant_id is None:
        return SdsStep()
    if action.name == "send":
        return channel.send([b"%d/%d" % (number, index) for index in range(action.count)], now, required=1)
    if action.name == "sync":
        return channel.send_sync(now)
    if action.name == "ephemeral":
        return channel.send_ephemeral(b"typing", now)
    if action.name == "observe_sent":
        assert action.message is not None
        return channel.observe_sent(action.message, now)
    open_ids = [outgoing.message.message_id for outgoing in channel.unacknowledged()]
    return channel.record_sent(open_ids[0] if open_ids else "none", now, retrieval_hint=b"s" * 32)

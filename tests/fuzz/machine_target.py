"""The participant: a channel's state machine with its journal and snapshots."""

from __future__ import annotations

from dataclasses import replace

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.events import MessageReceived
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.snapshot import restore_snapshot, write_snapshot
from reliable_channel.channel.steps import (
    DispatchDone,
    EnvelopeReceived,
    Input,
    Report,
    SdsDispatch,
    SendRequested,
    Ticked,
    decode_input,
    encode_input,
)
from reliable_channel.core.segmentation import contents_for
from reliable_channel.core.wire.hashing import sds_message_id, sha256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, decode_sds_message, encode_sds_message
from tests.fuzz import inputs
from tests.fuzz.cases_format import Step, Target

MAX_ENVELOPE_BYTES = 150 * 1024
"""What nodes relay."""


def machine() -> ChannelMachine:
    """A participant that nobody has heard of yet."""
    config = ReliableChannelConfig()
    return ChannelMachine(inputs.CHANNEL, "me", inputs.TOPIC, config, replace(inputs.SEGMENTS))


def snapshot_of_a_machine() -> ChannelMachine:
    """A participant in the middle of a conversation: something of everything in its state."""
    one = machine()
    one.apply(SendRequested(inputs.START_MS, b"mine " * 40))
    for number, content in enumerate([contents_for(inputs.PAYLOADS[0], inputs.SEGMENTS)[0], b"theirs"]):
        lamport = inputs.START_MS + number
        sds_id = sds_message_id("alice", lamport, content)
        history = (inputs.HistoryEntry("missing", bytes(32)),) if number else ()  # type: ignore[attr-defined]
        message = SdsMessage("alice", sds_id, inputs.CHANNEL, lamport, history, None, (), content)
        one.apply(EnvelopeReceived(inputs.START_MS + 1, encode_sds_message(message), bytes(32)))
    return one


def check_participant(steps: list[Step]) -> None:
    """A journal replayed, and a snapshot taken anywhere, give the machine that was never stopped. Whatever it heard, it
    delivers what was sent, and what it sends fits an envelope."""
    one, now = machine(), inputs.START_MS
    journal: list[bytes] = []
    half = machine()
    sent: set[bytes] = set()
    for number, step in enumerate(steps):
        now += step.after_ms
        given: Input
        if step.kind == "send":
            given = SendRequested(now, step.data or b"-")
        elif step.kind == "tick":
            given = Ticked(now)
        else:
            given = EnvelopeReceived(now, step.data, sha256(step.data))
            message = decode_sds_message(step.data)
            if not isinstance(message, Malformed) and message.content is not None:
                sent.add(message.content)
        for taken in _apply(one, given, journal, sent):
            _apply(one, taken, journal, sent)
        if number == len(steps) // 2:
            restore_snapshot(half, write_snapshot(one))
            rest = len(journal)
    # What is not kept moves only the clock, which the next input moves as well.
    _apply(one, Ticked(now + 1), journal, sent)
    replayed = machine()
    for entry in journal:
        replayed.apply(decode_input(entry))
    for entry in journal[rest:]:
        half.apply(decode_input(entry))
    half.last_active = replayed.last_active = one.last_active
    final = write_snapshot(one)
    assert write_snapshot(half) == final
    assert write_snapshot(replayed) == final
    given_bytes = sum(len(step.data) for step in steps)
    assert len(final) <= 300_000 + 8 * given_bytes, f"{len(final)} bytes of state for {given_bytes} of input"


def _apply(one: ChannelMachine, given: Input, journal: list[bytes], sent: set[bytes]) -> list[Input]:
    """Apply one input, check its effects, and return what the node would answer."""
    outcome = one.apply(given)
    if outcome.keep:
        journal.append(encode_input(outcome.given))
    answers: list[Input] = []
    for effect in outcome.effects:
        if isinstance(effect, SdsDispatch):
            assert len(effect.outgoing.data) < MAX_ENVELOPE_BYTES
            answers.append(DispatchDone(one.now, effect.sds_id, sha256(effect.outgoing.data), bool(effect.send_id)))
        elif isinstance(effect, Report) and isinstance(effect.event, MessageReceived):
            assert effect.event.message in sent or effect.event.message in inputs.PAYLOADS
    return answers


PARTICIPANT = Target(
    "participant",
    inputs.steps(
        ("heard", inputs.sds_bytes()),
        ("heard", inputs.sds_bytes()),
        ("send", inputs.st.binary(min_size=1, max_size=200)),  # type: ignore[attr-defined]
        ("tick", inputs.st.just(b"")),  # type: ignore[attr-defined]
        most=12,
    ),
    check_participant,
)

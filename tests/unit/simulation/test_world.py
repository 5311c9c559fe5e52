"""Whole simulated conversations: the same from the same seed, real on the wire, and true by the protocol core alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reliable_channel.core.aes_gcm import DecryptionRefusedError, EncryptionLayer
from reliable_channel.core.sds import Delivered
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, decode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.participant import RepeatableAesGcm, SimulatedParticipant, channel_key
from reliable_channel.simulation.presets import custom_scenario, demo_scenario, small_scenario
from reliable_channel.simulation.scenario import START_MS, ChannelPlan, Fault, Scenario
from reliable_channel.simulation.truth import MessageOutcome, TrueMessage, Truth
from reliable_channel.simulation.workload import PlannedMessage
from reliable_channel.simulation.world import World, simulate
from tests.support.examples import examples
from tests.unit.simulation.plain_observer import PlainObserver


@pytest.fixture(scope="module")
def demo() -> World:
    return simulate(demo_scenario())


def differences(scenario: Scenario) -> list[str]:
    """What an observer built from the core alone makes of the records, compared with the truth."""
    world = simulate(scenario)
    observer = PlainObserver()
    for offset, record in enumerate(world.records):
        observer.record(offset, record)
    truth = world.truth.locate([("t", 0, offset) for offset in range(len(world.records))])
    return [str(difference) for difference in check(truth, observer.finish(scenario.end_ms))]


def faulty(truth: Truth, fault: Fault) -> TrueMessage:
    return next(m for m in truth.messages if m.fault == fault.value)


def test_the_same_scenario_gives_the_same_bytes_and_the_same_truth() -> None:
    one, other = simulate(small_scenario(5)), simulate(small_scenario(5))
    assert one.records == other.records
    assert one.truth == other.truth
    assert one.records != simulate(small_scenario(6)).records


def test_a_channel_does_not_depend_on_the_channels_beside_it(demo: World) -> None:
    scenario = demo.scenario
    alone = simulate(replace(scenario, channels=scenario.channels[2:3], bad_input=0, plain_waku=0))
    mine = scenario.channels[2].content_topic.encode()
    beside = [r for r in demo.records if r.key == mine and r.label == ""]
    assert alone.records == beside


def test_every_record_is_what_it_is_said_to_be(demo: World) -> None:
    for record in demo.records:
        waku = decode_waku_message(record.value)
        if record.sds_id is not None and record.reason is None:
            assert isinstance(waku, WakuMessage)
            sds = decode_sds_message(waku.payload)
            assert isinstance(sds, SdsMessage)
            assert sds.message_id == record.sds_id
            assert len(record.value or b"") < 150_000
            assert dict(record.headers)["pubsub_topic"] == b"/waku/2/rs/1/0"
            assert dict(record.headers)["source"] in (b"relay", b"store")
        elif record.reason in ("null_value", "malformed_envelope", "empty_content_topic", "meta_too_long"):
            assert isinstance(waku, Malformed)
            assert waku.reason == record.reason


def test_records_come_in_the_order_of_their_times_and_no_envelope_is_sent_twice(demo: World) -> None:
    times = [record.at_ms for record in demo.records]
    assert times == sorted(times)
    hashes = [dispatch.envelope_hash for journal in demo.journals for dispatch in journal.dispatches]
    assert len(set(hashes)) == len(hashes)


def test_the_demo_shows_every_outcome_and_every_way_to_be_saved(demo: World) -> None:
    messages = demo.truth.messages
    assert {m.outcome for m in messages} == {outcome.value for outcome in MessageOutcome}
    assert any(m.by_parity for m in messages)
    assert any(m.by_retransmission and not m.by_parity for m in messages)
    assert any(m.ephemeral for m in messages)
    assert any(d.known_at_ms is not None for d in demo.truth.dependencies)
    assert {len(m.payload) // 102_400 for m in messages} & {5, 6, 7, 8}


def test_each_injected_fault_has_its_outcome(demo: World) -> None:
    truth = demo.truth
    elsewhere = (Fault.HASH_MISMATCH, Fault.LATE, Fault.UNDECRYPTABLE)
    outcomes = {fault: faulty(truth, fault).outcome for fault in Fault if fault not in elsewhere}
    assert outcomes[Fault.PARITY_SAVES] == MessageOutcome.DELIVERED
    assert faulty(truth, Fault.PARITY_SAVES).by_parity
    assert outcomes[Fault.SEGMENT_MISSING] == outcomes[Fault.UNDECODABLE] == MessageOutcome.INCOMPLETE
    for fault in (Fault.NEVER_SENT, Fault.RATE_LIMITED, Fault.NOT_STORED):
        assert outcomes[fault] in (MessageOutcome.REFERENCED, MessageOutcome.NO_TRACE)
    # The sender of what others have learns that they have it, though the observer never does.
    assert faulty(truth, Fault.NOT_STORED).sender_confirmed
    assert not faulty(truth, Fault.NEVER_SENT).sender_confirmed


def test_a_false_hash_is_never_delivered() -> None:
    scenario = small_scenario(3)
    channels = tuple(replace(c, faults=((4, Fault.HASH_MISMATCH),)) for c in scenario.channels)
    world = simulate(replace(scenario, channels=channels))
    assert faulty(world.truth, Fault.HASH_MISMATCH).outcome == MessageOutcome.INCOMPLETE
    assert differences(replace(scenario, channels=channels)) == []


@pytest.mark.parametrize("layer", EncryptionLayer)
def test_what_is_late_arrives_and_what_is_under_an_unknown_key_never_does(layer: EncryptionLayer) -> None:
    scenario = small_scenario(3)
    faults = ((4, Fault.LATE), (8, Fault.UNDECRYPTABLE))
    channels = tuple(replace(c, faults=faults, encrypted=True, encryption_layer=layer) for c in scenario.channels)
    world = simulate(replace(scenario, channels=channels, drain_ms=8 * 60_000))
    late, unknown = faulty(world.truth, Fault.LATE), faulty(world.truth, Fault.UNDECRYPTABLE)
    assert late.outcome == MessageOutcome.DELIVERED
    assert late.complete_at_ms is not None
    assert late.complete_at_ms - late.sent_at_ms >= 300_000
    assert unknown.outcome in (MessageOutcome.REFERENCED, MessageOutcome.NO_TRACE)
    assert unknown.sender_confirmed, "the others have the key"
    plan = channels[0]
    known = [r for r in world.records if r.key == plan.content_topic.encode() and r.sds_id is not None]
    opened = []
    for record in known:
        waku = decode_waku_message(record.value)
        assert isinstance(waku, WakuMessage)
        sds = decode_sds_message(waku.payload) if layer is EncryptionLayer.INSIDE_SDS else None
        ciphertext = sds.content if isinstance(sds, SdsMessage) else waku.payload
        try:
            opened.append(RepeatableAesGcm(plan, (channel_key(plan),)).decrypt(ciphertext) if ciphertext else b"")
        except DecryptionRefusedError:
            assert record.reason == "undecryptable"
    assert len(opened) == sum(record.reason is None for record in known) < len(known)
    if layer is EncryptionLayer.AROUND_SDS:
        assert all(isinstance(decode_sds_message(data), SdsMessage) for data in opened)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_participant_counts_what_parity_rebuilds_as_received(lost: int) -> None:
    """As a reliable channel does: it need not ask for the lost segment, and nothing waits for it."""
    plan = ChannelPlan("c", "/t/1/c/proto", ("alice", "bob"), 1, 1_000, segment_size=64, parity_rate=0.5)
    alice, bob = (SimulatedParticipant(name, plan) for name in plan.participants)
    for participant in (alice, bob):
        participant.sds.tick(START_MS)
    sent = [
        outgoing
        for number in range(2)
        for outgoing in alice.send_message(
            PlannedMessage(number, "alice", 0, bytes([number + 1]) * 100, False), START_MS + 1_000 * (number + 1)
        ).step.outgoing
    ]
    assert len(sent) == 6
    delivered = []
    for outgoing in sent[:lost] + sent[lost + 1 :]:
        step = bob.receive(alice.wrap(outgoing, START_MS + 2_000), START_MS + 2_100)
        delivered += [event.message_id for event in step.events if isinstance(event, Delivered)]
    assert sorted(delivered) == sorted(outgoing.message.message_id for outgoing in sent)
    assert bob.sds.missing_ids() == ()


def test_participants_confirm_each_others_messages_over_lossy_links(demo: World) -> None:
    for journal in demo.journals:
        sent = [m for m in journal.messages.values() if not m.ephemeral]
        withheld = (Fault.NEVER_SENT, Fault.RATE_LIMITED)
        reachable = [m for m in sent if m.fault not in withheld]
        assert len(journal.confirmed) >= 0.95 * len(reachable)


def test_the_truth_of_the_demo_is_what_the_core_observes() -> None:
    assert differences(demo_scenario()) == []


@settings(max_examples=examples(15), deadline=None)
@example(0, True, 0.3, 0.125)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([0.0, 0.05, 0.3]), st.sampled_from([None, 0.125, 0.5]))
def test_the_truth_of_any_seed_is_what_the_core_observes(
    seed: int, bursty: bool, loss: float, parity: float | None
) -> None:
    scenario = custom_scenario(
        seed=seed,
        messages=40,
        participants=3,
        channels=2,
        topics=1,
        loss=loss,
        duration_ms=240_000,
        parity_rate=parity,
        segment_size=1_024,
        bad_share=0.2,
        bursty=bursty,
    )
    # The same file again from the same sender is left to the scenarios above: which send a segment belongs to is then
    # told by its Lamport timestamp alone, and a sender need not keep those consecutive.
    channels = tuple(replace(plan, repeats=0.0) for plan in scenario.channels)
    assert differences(replace(scenario, channels=channels)) == []

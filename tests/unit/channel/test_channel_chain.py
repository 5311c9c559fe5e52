"""``verify_chunk_chain`` (March 2026 revision): a segment counts only when its link to its predecessor does."""

from __future__ import annotations

from dataclasses import replace

from reliable_channel.channel import MemoryPersistence, MessageLost
from reliable_channel.core.segmentation import SegmentationConfig
from tests.unit.channel.channel_world import World, drop, quick

PARITY = SegmentationConfig(
    segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5, set_timeout_ms=10_000, max_set_lifetime_ms=10_000
)
QUIET = {
    "repair": False,
    "sync_min_interval_ms": 0,
    "acknowledgement_timeout_ms": 9_000,
    "max_retransmissions": 0,
}


def test_a_whole_chain_is_delivered() -> None:
    world = World()
    config = quick(segmentation=PARITY, verify_chunk_chain=True, sds=QUIET)
    alice, bob = world.join("alice", config), world.join("bob", config)
    payload = bytes(range(250))
    alice.channel.send(payload)
    world.run(500)
    assert bob.payloads == [payload]


def test_out_of_order_segments_wait_for_their_predecessor() -> None:
    delays = iter((300.0, 200.0, 100.0, 0.0, 50.0, 60.0))
    world = World(lambda *_: (next(delays, 0.0),))
    config = quick(segmentation=PARITY, verify_chunk_chain=True, sds=QUIET)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(bytes(range(250)))
    world.run(1_000)
    assert bob.payloads == [bytes(range(250))]


def test_what_follows_a_lost_segment_is_not_used_and_discarded_at_expiry() -> None:
    world = World(drop(1))
    world.network.store_keeps = lambda message: False
    config = quick(segmentation=PARITY, verify_chunk_chain=True, sds=QUIET, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(bytes(range(250)))
    world.run(5_000)
    assert bob.payloads == []
    assert "unverified_chain" not in bob.problems()
    world.run(10_000)
    assert bob.problems().count("unverified_chain") == 5
    assert [event.reason for event in bob.of(MessageLost)] == ["unverified_chain"]


def test_by_default_parity_needs_no_chain() -> None:
    world = World(drop(1))
    config = quick(segmentation=PARITY, sds=QUIET, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(bytes(range(250)))
    world.run(1_000)
    assert bob.payloads == [bytes(range(250))]


def test_a_chain_that_is_half_verified_survives_a_restart() -> None:
    held: list[float] = []
    world = World(lambda sender, *_: (0.0,) if sender != "alice" or (len(held) < 2 and not held.append(0.0)) else ())
    kept = MemoryPersistence(keeps_journal=True)
    sds = {**QUIET, "acknowledgement_timeout_ms": 5_000, "max_retransmissions": 5}
    patient = replace(PARITY, max_set_lifetime_ms=400_000)
    config = quick(
        segmentation=patient, verify_chunk_chain=True, sds=sds, query_on_connect=False, max_journal_entries=1
    )
    alice = world.join("alice", config)
    bob = world.join("bob", replace(config, persistence=kept))
    alice.channel.send(bytes(range(250)))
    world.run(500)
    bob.channel.close()
    bob = world.join("bob", replace(config, persistence=kept))
    world.link = lambda *_: (0.0,)
    world.run(8_000)
    assert bob.payloads == [bytes(range(250))]


def test_parity_that_comes_after_a_complete_message_is_no_unverified_chain() -> None:
    world = World()
    config = quick(segmentation=PARITY, verify_chunk_chain=True, sds=QUIET, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(bytes(range(250)))
    world.run(500)
    assert bob.payloads == [bytes(range(250))]
    world.run(20_000)
    assert bob.problems() == []


def test_a_chain_is_kept_in_the_snapshot_and_the_journal_goes() -> None:
    world = World(drop(1))
    kept = MemoryPersistence(keeps_journal=True)
    config = quick(segmentation=PARITY, verify_chunk_chain=True, sds=QUIET, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", replace(config, persistence=kept))
    world.network.store_keeps = lambda message: False
    alice.channel.send(bytes(range(250)))
    world.run(500)
    bob.channel.close()
    assert [kept.load(key).journal for key in kept.channels()] == [()]
    bob = world.join("bob", replace(config, persistence=kept))
    world.run(15_000)
    assert bob.problems().count("unverified_chain") == 5

"""How a bridge reads its node: in what order, from when to when, and what it says of where envelopes were seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reliable_channel.transport.bridge_inbound import REJOIN_MAX_S, Inbound
from reliable_channel.transport.health import Mode
from reliable_channel.transport.waku_receiver import WakuReceiver
from tests.support.bridge_parts import START_NS, Parts
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode

OTHER_SHARD = "/waku/2/rs/16/33"


def test_an_orderly_stop_leaves_the_nodes_own_shard_alone(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.stop()
    assert ("DELETE", "/relay/v1/subscriptions") not in bridge.fake.requests
    assert bridge.fake.joined == {PUBSUB_TOPIC}


def test_an_orderly_stop_gives_up_a_shard_that_only_the_bridge_had_joined(parts: Callable[..., Parts]) -> None:
    bridge = parts(joined=())
    bridge.inbound.step()
    bridge.stop()
    assert bridge.fake._relay == {}


def test_an_orderly_stop_reads_what_came_since_the_last_read(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.publish(b"1", b"2", b"3")
    bridge.stop()
    assert bridge.written.payloads() == [b"1", b"2", b"3"]


def test_what_is_safe_is_not_in_the_future_after_the_clock_was_set_back(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.clock.advance(3_600_000)
    bridge.inbound.step()
    bridge.clock.advance(-3_600_000)
    bridge.inbound.step()
    assert bridge.state.acknowledged_ms == bridge.context.now_ms(), "else a gap after a crash would begin in the future"


def test_envelopes_of_one_timestamp_keep_the_order_of_the_node(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    payloads = [b"%d" % number for number in range(20)]
    bridge.publish(*payloads)
    bridge.publish(b"earlier", at_ns=START_NS - 1)
    bridge.inbound.step()
    assert bridge.written.payloads() == [b"earlier", *payloads]


def test_a_relay_that_hangs_while_the_node_answers_is_named(parts: Callable[..., Parts]) -> None:
    bridge = parts(answers_within_s=3.0)  # what is not slow answers in that time on a busy machine, too
    bridge.inbound.step()
    bridge.fake.faults.slow_s, bridge.fake.faults.paths = 30.0, "/relay/"
    bridge.inbound.step()
    assert not bridge.inbound.reachable
    assert "relay interface" in bridge.inbound.fault
    assert "hangs" in bridge.inbound.fault


def test_one_outage_is_one_gap_that_names_the_outage(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.down()
    for _ in range(3):
        bridge.inbound.step()
    bridge.fake.restart()  # it has forgotten the subscription, which is no gap of its own
    bridge.inbound.step()
    assert [gap.cause for gap in bridge.state.gaps] == ["node_unreachable"]
    assert [gap["cause"] for gap in bridge.written.gaps()] == ["node_unreachable"]


def test_a_node_that_is_away_for_long_is_asked_every_two_seconds(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.fake.down()
    assert max(bridge.inbound.step() for _ in range(10)) == REJOIN_MAX_S
    assert not bridge.inbound.ever_reachable
    assert bridge.fake.url in bridge.inbound.fault


@pytest.mark.parametrize(("here", "there"), [(30, 20), (25, 30)])
def test_nwaku_counts_its_cache_over_all_topics(parts: Callable[..., Parts], here: int, there: int) -> None:
    bridge = parts("nwaku", ((PUBSUB_TOPIC, None), (OTHER_SHARD, None)), joined=(PUBSUB_TOPIC, OTHER_SHARD))
    bridge.inbound.step()
    bridge.publish(*(b"a%d" % number for number in range(here)))
    bridge.publish(*(b"b%d" % number for number in range(there)), topic=OTHER_SHARD)
    bridge.inbound.step()
    assert [gap.cause for gap in bridge.state.gaps] == ["cache_full"]


def test_the_capacity_of_the_cache_is_a_setting(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku", relay_cache=200)
    bridge.inbound = Inbound(WakuReceiver(bridge.api, Mode.RELAY, bridge.clock, cache=200), bridge.context)
    bridge.inbound.step()
    bridge.publish(*(b"%d" % number for number in range(60)))
    bridge.inbound.step()
    assert bridge.state.gaps == ()


def test_two_bridges_say_where_an_envelope_was_seen_and_where_not(tmp_path: Path) -> None:
    network = FakeWakuNetwork()
    with FakeWakuNode("go-waku", network) as one, FakeWakuNode("go-waku", network) as other:
        north, south = Parts(one, tmp_path / "north"), Parts(other, tmp_path / "south")
        north.inbound.step()
        south.inbound.step()
        (both,) = north.publish(b"both")
        north.inbound.step()
        south.inbound.step()
        other.restart()  # and so the southern node has forgotten what comes now
        (alone,) = north.publish(b"north alone")
        north.inbound.step()
        south.inbound.step()
        south.gap_over()
        assert north.written.sightings() == [("north", one.url, "relay", one_hash) for one_hash in (both, alone)]
        seen, *recovered = south.written.sightings()
        assert seen == ("south", other.url, "relay", both)
        # Store v1 leaves out meta, which is part of the hash: the sighting names both.
        assert ("south", other.url, "store", alone) in recovered
        assert {source for _, _, source, _ in recovered} == {"store"}
        north.state.close()
        south.state.close()


def test_a_read_waits_as_long_as_the_node_says(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.faults.status, bridge.fake.faults.retry_after = 503, "40"
    assert bridge.inbound.step() == 40.0

"""How a bridge dispatches within the limit of its membership (RLN)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.rate_limit import Admitted, RateLimitConfig, Traffic
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.bridge_outbound import Outbound
from reliable_channel.transport.bridge_state import BridgeState
from reliable_channel.transport.dispatch_limit import CountFile, DispatchLimit
from reliable_channel.transport.kafka_consumer import RawRecord
from reliable_channel.transport.waku_api import Published
from reliable_channel.transport.waku_health import node_has_rln
from tests.support.bridge_parts import Parts, outgoing_request, results
from tests.support.fake_waku_faults import Dialect


def limited(bridge: Parts, place: Path, messages: int, **more: Any) -> Outbound:
    config = RateLimitConfig(enabled=True, messages_per_epoch=messages, epoch_size_ms=60_000, **more)
    limit: DispatchLimit[Any] = DispatchLimit(config, CountFile(place / "count.json"))
    return Outbound(bridge.api.relay_publish, bridge.context, limit=limit)


def at_epoch_start(bridge: Parts) -> None:
    bridge.clock.advance(60_000 - bridge.clock.now_ns() // 1_000_000 % 60_000)


def test_the_bridge_dispatches_within_the_limit_of_the_membership(parts: Callable[..., Parts], tmp_path: Path) -> None:
    bridge = parts()
    bridge.inbound.step()
    at_epoch_start(bridge)
    outbound = limited(bridge, tmp_path, 2)
    records = [
        outgoing_request(b"c0", 0),
        outgoing_request(b"sync", 1, Traffic.CONTROL),
        outgoing_request(b"again", 2, Traffic.CONTROL),
    ]
    records += [outgoing_request(b"c1", 3), outgoing_request(b"typing", 4, Traffic.EPHEMERAL)]
    done = outbound.dispatch(records, threading.Event())
    assert [raw.offset for raw in done] == [0, 1, 4]
    for _ in range(2):
        bridge.clock.advance(60_000)
        done += outbound.dispatch([], threading.Event())
    assert [message.payload for _, message in bridge.fake.published] == [b"c0", b"sync", b"c1", b"again"]
    assert [raw.offset for raw in done] == [0, 1, 4, 3, 2]
    reported = [(one.request_id, one.status.value) for one in results(bridge)]
    assert reported.index(("again", "delayed")) < reported.index(("c1", "delayed"))
    assert ("typing", "failed") in reported
    assert [one.reason for one in results(bridge) if one.request_id == "typing"] == [FailureReason.DROPPED]
    assert next(one.near for one in results(bridge) if one.near)[:2] == (2, 2)
    held = [record["request_id"] for record in bridge.written.evidence("dispatch")]
    assert held == ["again", "c1"]


def test_a_bridge_started_again_goes_on_with_the_count_and_dispatches_nothing_twice(
    parts: Callable[..., Parts], tmp_path: Path
) -> None:
    bridge = parts()
    bridge.inbound.step()
    at_epoch_start(bridge)
    records = [outgoing_request(b"c0", 0), outgoing_request(b"sync", 1, Traffic.CONTROL), outgoing_request(b"c1", 2)]
    reader = ListReader(records)
    outbound = limited(bridge, tmp_path, 1)

    class TwoEpochs(threading.Event):
        """Stops after the second epoch began."""

    stopping = TwoEpochs()
    reader.when_empty = [lambda: bridge.clock.advance(60_000), stopping.set]
    outbound.run(cast(Any, reader), stopping)
    assert [message.payload for _, message in bridge.fake.published] == [b"c0", b"c1"]
    assert reader.committed == {0: 1}, "the sync message waits, and what follows it is remembered by the bridge"
    again = BridgeState(bridge.state._path)
    bridge.state.close()
    again.open()
    context = replace(bridge.context, state=again)
    stopping = TwoEpochs()
    reader = ListReader(records[1:])
    config = RateLimitConfig(enabled=True, messages_per_epoch=1, epoch_size_ms=60_000)
    limit: DispatchLimit[Any] = DispatchLimit(config, CountFile(tmp_path / "count.json"))
    reader.when_empty = [lambda: bridge.clock.advance(60_000), stopping.set]
    Outbound(bridge.api.relay_publish, context, limit=limit).run(cast(Any, reader), stopping)
    assert [message.payload for _, message in bridge.fake.published] == [b"c0", b"c1", b"sync"]
    assert reader.committed == {0: 3}
    again.close()


class ListReader:
    """Records instead of a Kafka topic; each empty poll calls the next of ``when_empty``."""

    def __init__(self, records: list[RawRecord]) -> None:
        self.records = records
        self.when_empty: list[Callable[[], object]] = []
        self.committed: dict[int, int] = {}

    def poll(self, timeout_ms: int) -> list[RawRecord]:
        batch, self.records = self.records, []
        if not batch:
            self.when_empty.pop(0)()
        return batch

    def commit(self, offsets: dict[int, int]) -> None:
        self.committed |= offsets

    def close(self) -> None: ...


@pytest.mark.parametrize("dialect", ["nwaku", "go-waku"])
@pytest.mark.parametrize("enabled", [None, False, True])
def test_where_the_node_has_rln_the_limit_is_on_or_the_start_says_why_not(
    parts: Callable[..., Parts], dialect: Dialect, enabled: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    bridge = parts(dialect, rln=True)
    limit: DispatchLimit[Any] = DispatchLimit(RateLimitConfig(enabled=enabled))
    limit.node_has_rln(node_has_rln(bridge.api), bridge.fake.url)
    assert limit.enabled is (enabled is not False)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == (enabled is not True)
    assert all("RLN is on" in sentence and bridge.fake.url in sentence for sentence in said)


@pytest.mark.parametrize("dialect", ["nwaku", "go-waku"])
def test_where_the_node_has_no_rln_there_is_no_limit(parts: Callable[..., Parts], dialect: Dialect) -> None:
    bridge = parts(dialect)
    assert node_has_rln(bridge.api) is False
    limit: DispatchLimit[Any] = DispatchLimit()
    limit.node_has_rln(False, bridge.fake.url)
    assert not limit.enabled


def test_a_refusal_for_rln_says_that_rln_is_on(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    limit: DispatchLimit[Any] = DispatchLimit()

    def refuse(_topic: str, _message: WakuMessage) -> Published:
        return Published(FailureReason.REFUSED, "Failed to publish: error appending RLN proof to message")

    Outbound(refuse, bridge.context, limit=limit).dispatch([outgoing_request(b"x")], threading.Event())
    assert limit.enabled


def test_processes_that_dispatch_through_one_node_share_a_count(tmp_path: Path) -> None:
    config = RateLimitConfig(enabled=True, messages_per_epoch=3)
    one, other = (DispatchLimit[str](config, CountFile.of_node(str(tmp_path), "http://n:1")) for _ in range(2))
    stranger = DispatchLimit[str](config, CountFile.of_node(str(tmp_path), "http://n:2"))
    events = [limit.submit(str(n), Traffic.FIRST_SEGMENT, 5) for n in range(3) for limit in (one, other)]
    assert sum(isinstance(event, Admitted) for some in events for event in some) == 3
    assert [type(event) for event in stranger.submit("x", Traffic.FIRST_SEGMENT, 5)] == [Admitted]


def test_a_damaged_count_dispatches_nothing(tmp_path: Path) -> None:
    (tmp_path / "count.json").write_text('{"epoch": "1"}')
    limit: DispatchLimit[str] = DispatchLimit(RateLimitConfig(enabled=True), CountFile(tmp_path / "count.json"))
    with pytest.raises(EnvironmentFault, match="is not the count"):
        limit.submit("x", Traffic.FIRST_SEGMENT, 5)

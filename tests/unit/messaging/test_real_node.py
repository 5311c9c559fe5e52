"""The Messaging API over the REST API of a Waku node: both dialects, both modes, and everything a node does wrong.

What a node does wrong changes nothing for the caller but the health and the record's error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reliable_channel.messaging import MessageRecord
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNode
from tests.support.messaging_site import Site, waku_site
from tests.support.messaging_world import CONTENT

PLACES = [(dialect, edge) for dialect in ("nwaku", "go-waku") for edge in (False, True)]
NAMES = [f"{dialect}-{'edge' if edge else 'relay'}" for dialect, edge in PLACES]


@pytest.fixture(params=PLACES, ids=NAMES)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    dialect, edge = request.param
    with FakeWakuNode(dialect) as fake:
        made = waku_site(fake, edge)
        try:
            yield made
        finally:
            made.node.close()


def listen(site: Site, heard: list[MessageRecord] | None = None) -> str:
    """Subscribe, and wait until the node hands over what is on the network."""
    assert site.fake is not None
    subscription_id = site.subscribe(None if heard is None else heard.append)
    number = 0
    while not site.node.get_by_subscription_id(subscription_id):
        number += 1
        site.clock.advance(1)
        site.arrives(b"probe %d" % number)
        site.wait_for_requests(3)
    site.wait_for_reads(3)  # until all probes are here
    return subscription_id


def payloads(site: Site) -> list[bytes]:
    assert site.fake is not None
    return [message.payload for topic, message in site.fake.published if topic == PUBSUB_TOPIC]


def test_a_message_is_sent_as_the_node_has_it(site: Site) -> None:
    site.start()
    request_id = site.send(meta=b"meta")
    site.until(lambda: site.record(request_id).sent)
    assert site.fake is not None
    ((topic, message),) = site.fake.published
    assert (topic, message.payload, message.meta, message.timestamp) == (
        PUBSUB_TOPIC,
        b"hello",
        b"meta",
        site.record(request_id).message.timestamp,
    )


def test_edge_uses_lightpush_and_filter_and_relay_uses_relay(site: Site) -> None:
    site.start()
    listen(site)
    request_id = site.send()
    site.until(lambda: site.record(request_id).sent)
    assert site.fake is not None
    used = {path.split("/")[1] for _, path in site.fake.requests}
    assert ({"lightpush", "filter"} <= used, "relay" in used) == (site.edge, not site.edge)


def test_a_message_of_the_network_is_received_once(site: Site) -> None:
    site.start()
    heard: list[MessageRecord] = []
    listen(site, heard)
    assert site.fake is not None
    site.fake.faults.repeat_reads = True
    site.clock.advance(1)
    message = site.arrives(b"from afar")
    site.until(lambda: any(record.message.payload == b"from afar" for record in heard))
    site.wait_for_requests(10)
    found = [record for record in heard if record.message.payload == b"from afar"]
    assert [(record.received, record.message.timestamp) for record in found] == [(True, message.timestamp)]


def test_history_and_store_confirmation_read_the_nodes_store(site: Site) -> None:
    site.start(store_confirmation=True, confirm_content_topics=(CONTENT,))
    request_id = site.send()
    site.until(lambda: site.record(request_id).sent)
    site.clock.advance(60_000)
    site.node.tick()
    site.clock.advance(60_000)
    site.until(lambda: site.record(request_id).stored)
    assert [record.request_id for record in site.node.history([CONTENT])] == [request_id]


def test_a_node_that_is_down_is_unhealthy_and_sending_goes_on_when_it_is_back(site: Site) -> None:
    site.start()
    assert site.fake is not None
    site.fake.down()
    request_id = site.send()
    site.until(lambda: site.node.health_indicator == "Unhealthy")
    site.until(lambda: site.record(request_id).error is not None and not site.record(request_id).sending)
    assert site.node.get_pending_requests() == [request_id]
    site.fake.up()
    site.until(lambda: site.node.health_indicator != "Unhealthy")
    site.clock.advance(1_000)
    site.until(lambda: site.record(request_id).sent)
    assert site.record(request_id).error is None
    assert payloads(site) == [b"hello"]


def test_a_node_that_takes_the_message_and_fails_all_the_same_has_it_once(site: Site) -> None:
    site.start()
    assert site.fake is not None
    site.fake.faults.publish_but_fail = 500
    request_id = site.send()
    site.until(lambda: site.record(request_id).error)
    site.fake.faults.publish_but_fail = None
    site.clock.advance(1_000)
    site.until(lambda: site.record(request_id).sent)
    assert len({(message.timestamp, message.payload) for _, message in site.fake.published}) == 1
    assert site.record(request_id).error is None


@pytest.mark.parametrize(("status", "final"), [(400, True), (429, False), (500, False), (503, False)])
def test_what_the_node_answers_shows_in_the_records_error(site: Site, status: int, final: bool) -> None:
    site.start()
    assert site.fake is not None
    site.fake.faults.status = status
    site.fake.faults.body = "no"
    site.fake.faults.paths = "lightpush" if site.edge else "relay/v1/messages"
    request_id = site.send()
    site.until(lambda: site.record(request_id).error)
    assert site.record(request_id).sent is False
    if final:
        site.until(lambda: not site.record(request_id).sending)
        assert site.node.get_pending_requests() == []
        return
    assert site.node.get_pending_requests() == [request_id]
    site.fake.faults.status = None
    site.clock.advance(1_000)
    site.until(lambda: site.record(request_id).sent)


def test_three_retries_and_no_more_reach_the_node(site: Site) -> None:
    site.start()
    assert site.fake is not None
    site.fake.faults.publish_but_fail = 500
    request_id = site.send()
    for wait in (1_000, 2_000, 4_000, 8_000):
        before = len(errors(site))
        site.until(lambda before=before: len(errors(site)) > before)  # type: ignore[misc]
        site.clock.advance(wait)
    site.until(lambda: not site.record(request_id).sending)
    assert len(errors(site)) == 4
    assert len(site.fake.published) == 4


def errors(site: Site) -> list[Any]:
    return [detail for name, detail in site.events if name == "message:error"]


@pytest.mark.parametrize("body", [b"null", b"{}", b"\xff\xfe", b'[{"payload": 1}]', b'{"messages": null}', b"<html>"])
def test_answers_that_make_no_sense_harm_neither_records_nor_callers(site: Site, body: bytes) -> None:
    site.start()
    subscription_id = listen(site)
    before = site.node.get_by_subscription_id(subscription_id)
    assert site.fake is not None
    site.fake.faults.garbage = body
    site.wait_for_requests(5)
    assert site.node.get_by_subscription_id(subscription_id) == before
    site.fake.faults.garbage = None
    site.until(lambda: site.node.health_indicator != "Unhealthy")
    site.clock.advance(1)
    site.arrives(b"afterwards")
    site.until(lambda: site.node.get_by_subscription_id(subscription_id)[-1].message.payload == b"afterwards")


def test_a_slow_node_is_in_doubt_and_its_later_answer_no_second_message() -> None:
    with FakeWakuNode("nwaku") as fake:
        site = waku_site(fake, edge=True, timeout_s=0.1)
        site.start()
        fake.faults.paths, fake.faults.slow_s = "lightpush", 0.3
        request_id = site.send()
        site.until(lambda: site.record(request_id).error)
        assert site.record(request_id).error.startswith("unreachable")
        fake.faults.slow_s = 0.0
        site.until(lambda: fake.published)
        site.clock.advance(1_000)
        site.until(lambda: site.record(request_id).sent)
        assert len({message.timestamp for _, message in fake.published}) == 1
        site.node.close()


@pytest.mark.parametrize(
    ("peers", "status"), [(0, "Unhealthy"), (3, "Unhealthy"), (4, "MinimallyHealthy"), (6, "Healthy")]
)
def test_the_health_follows_the_mesh_that_the_node_reports(peers: int, status: str) -> None:
    with FakeWakuNode("nwaku") as fake:
        site = waku_site(fake, edge=False)
        site.start()
        fake.mesh_peers = peers
        site.until(lambda: site.node.health_indicator == status)
        site.node.close()


@pytest.mark.parametrize(("peers", "status"), [(0, "Unhealthy"), (1, "MinimallyHealthy"), (2, "Healthy")])
def test_the_health_follows_the_service_nodes_that_the_node_reports(peers: int, status: str) -> None:
    with FakeWakuNode("go-waku") as fake:
        site = waku_site(fake, edge=True)
        site.start()
        fake.service_peers = peers
        site.until(lambda: site.node.health_indicator == status)
        site.node.close()

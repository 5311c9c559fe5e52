"""The view ``participant_views``: what it calls proven is true of simulated conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest

from reliable_channel.analysis.report.snapshot import create_views
from reliable_channel.core.sds.filter import OwnFilter
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ACKS, SDS_MESSAGES
from reliable_channel.lake.tables.views.participant_views import participant_views_sql
from reliable_channel.simulation.scenario import ChannelPlan, LinkQuality, Nap, Partition, Scenario, SizeMix
from reliable_channel.simulation.world import World, simulate
from tests.support.js_waku_sds import JsWakuSds
from tests.support.nim_sds import NimSds
from tests.support.simulated_tables import write_simulated

MINUTE_MS = 60_000
WHO = ("alice", "bob", "carol", "dave")


def conversation(seed: int, loss: float = 0.2, **more: Any) -> World:
    """Four participants for six minutes; the observer hears less than everything, and some of it twice."""
    plan = ChannelPlan(
        channel_id="talk",
        content_topic="/reliable-channel/1/chat/proto",
        participants=WHO,
        messages=70,
        duration_ms=6 * MINUTE_MS,
        segment_size=512,
        sizes=SizeMix(short=0.7, medium=0.1, large=0.2, max_segments=3),
        between=LinkQuality(loss=loss, reorder=loss),
        to_observer=LinkQuality(loss=loss / 2, duplicate=loss),
        repeats=0.0,
        **more,
    )
    return simulate(Scenario(seed=seed, channels=(plan,), drain_ms=0))


def check(world: World, place: Path) -> dict[str, dict[str, Any]]:
    """Compare the view with the truth; its rows by participant."""
    rows = write_simulated(place, world).select("SELECT * FROM participant_views")
    received = {(each.sds_id, each.participant): each.at_ms for each in world.truth.heard}
    segments = [each for each in world.truth.segments if each.message is not None]
    for row in rows:
        who, made = row["participant"], row["made_ms"]
        by_then = [s for s in segments if s.sender != who and received.get((s.sds_id, who), made + 1) <= made]
        others = [s for s in segments if s.sender != who and s.made_at_ms <= made]
        assert row["has"] + row["lacks"] + row["may_lack"] == row["messages"]
        assert row["has"] <= len([s for s in segments if (s.sds_id, who) in received])
        assert row["lacks"] <= len(others) - len(by_then)
        assert row["oldest_missing"] is None or received.get((row["oldest_missing"], who), made + 1) > made
    return {row["participant"]: row for row in rows}


@pytest.mark.parametrize(
    "more",
    [
        {"loss": 0.4},
        {"partitions": (Partition(2 * MINUTE_MS, 9 * MINUTE_MS, frozenset({"carol", "dave"}), is_observed=True),)},
        {"sleeps": (Nap("bob", MINUTE_MS, 5 * MINUTE_MS),), "joins_at": (("dave", 4 * MINUTE_MS),)},
        {"foreign": (("alice", JsWakuSds), ("bob", JsWakuSds))},
        {"foreign": (("alice", NimSds), ("bob", NimSds)), "family": WireFamily.NIM},
    ],
    ids=["much loss", "a partition", "a sleeper and a newcomer", "js-waku", "nim-sds"],
)
def test_nobody_lacks_what_it_received_nor_has_what_it_never_did(more: dict[str, Any], tmp_path: Path) -> None:
    for seed in range(2):
        check(conversation(seed, **more), tmp_path / str(seed))


def test_without_loss_nobody_lacks_anything(tmp_path: Path) -> None:
    assert {row["lacks"] for row in check(conversation(1, loss=0.0), tmp_path).values()} == {0}


def test_each_side_of_a_partition_lacks_what_the_other_sent_since(tmp_path: Path) -> None:
    apart = Partition(2 * MINUTE_MS, 9 * MINUTE_MS, frozenset({"carol", "dave"}), is_observed=True)
    world = conversation(5, loss=0.05, partitions=(apart,))
    rows = check(world, tmp_path)
    for who in WHO:
        since_ms = rows[who]["lacks_since"].timestamp() * 1000 - world.scenario.start_ms
        assert apart.start_ms < since_ms < apart.start_ms + MINUTE_MS
        assert set(rows[who]["cut_off_from"]) <= ({"alice", "bob"} if who in apart.members else apart.members)


def test_nobody_knows_before_what_reached_it_after_a_partition(tmp_path: Path) -> None:
    """Also where all that the observer has of a message is the copy of a repair, after the partition."""
    apart = Partition(2 * MINUTE_MS, 4 * MINUTE_MS, frozenset({"carol"}), is_observed=True)
    late = 0
    for seed in range(4):
        world = conversation(seed, loss=0.1, partitions=(apart,))
        begin, end = (world.scenario.start_ms + ms for ms in (apart.start_ms + MINUTE_MS // 2, apart.end_ms))
        rows = write_simulated(tmp_path / str(seed), world).select(participant_views_sql(every_ms=MINUTE_MS))
        across = [row for row in rows if "carol" in (row["participant"], row["sender_id"])]
        within = [row for row in across if begin < row["made_ms"] < end]
        assert [row for row in within if (row["last_had_ms"] or 0) > begin] == []
        late += len(within)
    assert late > 20


def test_a_hundred_participants_and_a_thousand_messages_are_compared_in_little_memory() -> None:
    """With the names in each of the 100 000 pairs this took 110 MB, and the search for splits in a day 1.8 GB."""
    filter_, rows = OwnFilter(FilterFormat()), []
    for number in range(1_100):
        at_us, sds_id = (1_767_225_600 + number) * 1_000_000, f"{number:064x}"
        message = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/app/1/crowd/proto", "channel_id": "crowd"}
        message |= {"sds_id": sds_id, "sender_id": f"participant {number % 100}", "sds_kind": "content"}
        record = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": number, "event_time": at_us}
        lamport = at_us // 1_000
        rows.append({**message, **record, "lamport_timestamp": lamport, "bloom_filter": filter_.encode()})
        filter_.insert(sds_id)
    engine = duckdb.connect(config={"threads": 1, "memory_limit": "70MB", "temp_directory": ""})
    engine.execute("SET TimeZone = 'UTC'")
    create_views(engine, ())
    for table in (SDS_MESSAGES, ACKS):
        engine.register(table.name, ds.dataset(as_arrow(rows if table is SDS_MESSAGES else [], table)))
    totals = f"SELECT sum(messages), sum(may_lack), sum(lacks) FROM ({participant_views_sql()})"  # noqa: S608 - our own
    ((messages, may_lack, lacks),) = engine.sql(totals).fetchall()
    engine.close()
    assert messages == may_lack > 90_000
    assert lacks == 0

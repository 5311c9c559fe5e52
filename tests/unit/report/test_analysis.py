"""What is asked of the tables is what stands in them: held against the story that the sample tables tell."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from reliable_channel.analysis.figures import latencies
from reliable_channel.analysis.report import capacity, delivery, depth, graph, investigate, loss, quarantine
from reliable_channel.analysis.report.dimensions import SIZES
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import dataset_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    DELIVERIES,
    INCOMPLETE_MESSAGES,
    REASSEMBLED_MESSAGES,
    REFETCH_REQUESTS,
    SDS_MESSAGES,
    STORE_PRESENCE,
    Table,
)
from tests.support.sample_rows import Story
from tests.support.sample_values import AS_OF, HOSTILE, START, at


@pytest.fixture(scope="module")
def source(sample_tables: Path) -> TableWindow:
    return TableWindow(sample_tables)


def windowed(place: Path, **window: object) -> TableWindow:
    return TableWindow(place, Window(**window))  # type: ignore[arg-type]


# The source


def test_a_window_holds_its_beginning_and_not_its_end(sample_tables: Path, the_story: Story) -> None:
    first, last = at(600), at(1200)
    found = windowed(sample_tables, since=first, until=last).rows("acks")["event_time"].to_pylist()
    assert sorted(found) == sorted(r["event_time"] for r in the_story.rows["acks"] if first <= r["event_time"] < last)


@pytest.mark.parametrize("channel", ["talk", *HOSTILE])
def test_a_channel_is_a_value_and_never_text_of_a_query(sample_tables: Path, channel: str) -> None:
    rows = windowed(sample_tables, channel_id=channel).rows("sds_messages")["channel_id"].to_pylist()
    assert rows and set(rows) == {channel}


def test_a_query_reads_no_file_and_loads_no_extension(source: TableWindow) -> None:
    with pytest.raises(Exception, match="disabled by configuration"):
        source.query("SELECT * FROM read_csv('/etc/hostname')")


def test_columns_are_read_as_they_are_needed_and_belong_together(sample_tables: Path, the_story: Story) -> None:
    opened = TableWindow(sample_tables)
    opened.query("SELECT sds_id FROM acks")
    assert opened.rows("acks", ["sds_id"]).column_names == ["sds_id"]
    pairs = opened.query("SELECT sds_id, latency_ms, acknowledged_by FROM acks ORDER BY ALL")
    wanted = sorted((r["sds_id"], r["latency_ms"], r["acknowledged_by"]) for r in the_story.rows["acks"])
    assert sorted(pairs.itertuples(index=False, name=None)) == wanted


def test_payloads_are_read_only_when_they_are_named(source: TableWindow) -> None:
    assert "payload" not in source.rows("reassembled_messages").column_names
    assert source.query("SELECT count(payload) AS n FROM reassembled_messages")["n"][0] > 0


def test_an_answer_that_is_changed_does_not_change_the_next(source: TableWindow) -> None:
    first = loss.causes(source)
    first.loc[0, "messages"] = -1
    assert (loss.causes(source)["messages"] > 0).all()
    question = "SELECT count(*) AS n FROM acks WHERE acknowledged_by = $who"
    assert source.query(question, who="alice")["n"][0] != source.query(question, who="nobody")["n"][0]


def test_a_missing_table_is_empty_until_it_is_required(tmp_path: Path) -> None:
    nothing = TableWindow(tmp_path)
    assert loss.causes(nothing).empty and delivery.by_channel(nothing).empty and loss.by_segment_index(nothing).empty
    with pytest.raises(EnvironmentFault, match="no Delta tables"):
        nothing.snapshot.require_any()


def test_a_table_of_an_older_version_is_refused_where_a_column_that_it_lacks_is_read(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "acks"), pa.table({"sds_id": ["a"], "latency_ms": [5]}))
    assert TableWindow(tmp_path).query("SELECT sds_id FROM acks").values.tolist() == [["a"]]
    with pytest.raises(EnvironmentFault, match=r"acks was made by another version \(evidence missing\).*rebuild"):
        TableWindow(tmp_path).query("SELECT sds_id, evidence FROM acks")


def test_windows_of_a_snapshot_show_its_versions_of_the_tables(tmp_path: Path, sample_tables: Path) -> None:
    shutil.copytree(sample_tables / "acks", tmp_path / "acks")
    snapshot = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    count = "SELECT count(*) AS n FROM acks"
    before = snapshot.select(count)
    acks = deltalake.DeltaTable(str(tmp_path / "acks"))
    write_deltalake(acks, dataset_of(acks).to_table(), mode="append")
    assert TableWindow(snapshot).select(count) == snapshot.select(count) == before
    assert TableWindow(tmp_path).select(count)[0]["n"] == 2 * before[0]["n"]


def test_a_damaged_table_is_a_fault_with_a_remedy(tmp_path: Path, sample_tables: Path) -> None:
    shutil.copytree(sample_tables / "acks", tmp_path / "acks")
    for file in deltalake.DeltaTable(str(tmp_path / "acks")).file_uris():
        Path(file).unlink()
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        TableWindow(tmp_path).rows("acks")


# Delivery


def test_channels_are_counted_by_verdict(source: TableWindow, the_story: Story) -> None:
    found = delivery.by_channel(source).set_index("channel_id")
    counts = Counter((r["channel_id"], r["verdict"]) for r in the_story.rows["delivery_status"])
    for (channel, verdict), count in counts.items():
        assert found.at[channel, verdict] == count
    assert found.at["talk", "late"] == 1
    assert found.at["files", "repaired"] == 2
    assert found.at["files", "loss"] == pytest.approx(counts["files", "missing"] / 28)
    assert found.at["sealed", "payload_bytes"] == 10 * 128


@pytest.mark.parametrize("by", ["channel_id", "sender_id", "size"])
def test_the_rate_counts_every_delivered_message_once(source: TableWindow, the_story: Story, by: str) -> None:
    found = delivery.rate(source, by)  # type: ignore[arg-type]
    assert found["messages"].sum() == len(the_story.rows["delivered_messages"])
    assert found["payload_bytes"].sum() == sum(r["payload_bytes"] for r in the_story.rows["delivered_messages"])


def test_bins_are_as_wide_as_the_time_asks_for(source: TableWindow) -> None:
    assert delivery.rate(source).attrs["seconds"] == 60
    assert {t.second for t in delivery.rate(source)["time"]} == {0}
    assert len(set(delivery.rate(source, seconds=1800)["time"])) == 2


def test_an_unknown_dimension_is_refused(source: TableWindow) -> None:
    with pytest.raises(LocalError, match="not something to group by"):
        delivery.rate(source, "1; DROP TABLE acks")  # type: ignore[arg-type]


def test_latency_runs_from_the_senders_timestamp_and_waiting_from_our_first_sight(source: TableWindow) -> None:
    quiet = delivery.latency(source).set_index("name").loc["quiet"]
    assert (quiet["messages"], quiet["p50_ms"], quiet["max_ms"]) == (10, pytest.approx(400), pytest.approx(400))
    assert delivery.waiting(source).set_index("name").at["talk", "max_ms"] == 400_000


def test_a_curve_rises_from_nothing_to_all(source: TableWindow) -> None:
    names = list(delivery.latency(source, "size")["name"])
    assert names == sorted(names, key=SIZES.index), "sizes stand in their order, not in that of their words"
    for _, line in delivery.latency_curve(source, "size").groupby("name"):
        assert (line["share"].min(), line["share"].max()) == (0, 1)
        assert line["ms"].is_monotonic_increasing and len(line) == 101


def test_curves_are_those_of_the_names_with_most_messages(source: TableWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report over 20 000 channels held two million points, for the seven lines that it draws."""
    names = list(delivery.latency(source)["name"])
    monkeypatch.setattr(delivery, "MOST_LINES", 2)
    assert {*delivery.latency_curve(source)["name"]} == {*names[:2]} < {*names}


def test_an_acknowledgement_counts_when_its_first_evidence_came(source: TableWindow, the_story: Story) -> None:
    first: dict[tuple[object, ...], int] = {}
    for r in the_story.rows["acks"]:
        key = (r["content_topic"], r["channel_id"], r["sds_id"], r["acknowledged_by"])
        first[key] = min(first.get(key, r["latency_ms"]), r["latency_ms"])
    found = delivery.acknowledgement_latency(source, "evidence")
    assert found["acknowledgements"].sum() == len(first) < len(the_story.rows["acks"])
    assert found["max_ms"].max() == max(first.values())
    by_size = delivery.acknowledgement_latency(source, "size")
    assert by_size["acknowledgements"].sum() == len(first)
    assert set(by_size["name"]) - {"unknown"} <= set(SIZES) and len(by_size) > 1


def test_stronger_evidence_in_a_later_window_is_no_acknowledgement_of_its_own(
    sample_tables: Path, the_story: Story
) -> None:
    first: dict[tuple[object, ...], tuple[dt.datetime, int]] = {}
    for r in the_story.rows["acks"]:
        key = (r["content_topic"], r["channel_id"], r["sds_id"], r["acknowledged_by"])
        first[key] = min(first.get(key, (r["event_time"], r["latency_ms"])), (r["event_time"], r["latency_ms"]))
    since = at(700)
    later = {key for key, (time, _) in first.items() if time < since} & {
        (r["content_topic"], r["channel_id"], r["sds_id"], r["acknowledged_by"])
        for r in the_story.rows["acks"]
        if r["event_time"] >= since
    }
    assert later, "stronger evidence came after the beginning of the window"
    expected = [ms for time, ms in first.values() if time >= since]
    source = windowed(sample_tables, since=since)
    for by in ("channel_id", "size"):
        shown = delivery.acknowledgement_latency(source, by)
        assert (shown["acknowledgements"].sum(), shown["max_ms"].max()) == (len(expected), max(expected))
    (lake, just) = source.snapshot, {"since": since - dt.timedelta(microseconds=1)}
    assert latencies(lake, "event_time > $since", just)["acknowledgement"] == pytest.approx(
        list(pd.Series(expected).quantile([0.5, 0.9, 0.99]))
    )


def test_the_causal_depth_is_the_longest_chain(source: TableWindow) -> None:
    depths = depth.causal_depth(source)
    by_channel = depth.depth_by_channel(depths).set_index("channel_id")
    assert by_channel.at["quiet", "depth"] == 0 and by_channel.at["quiet", "parallel"] == 10
    # 0 … 44 are a chain of 45 that goes on without the ephemeral 33, past 20 that never came; 45 to 47 tear it.
    assert by_channel.at["talk", "depth"] == 42
    assert depth.depth_over_time(depths)["depth"].max() == 42
    newest = depth.causal_depth(source, newest=7)
    assert 0 < len(newest) <= 7 and newest["time"].min() > at(3_000)


def test_messages_without_any_causal_history_have_no_depth(
    sample_tables: Path, the_story: Story, tmp_path: Path
) -> None:
    rows = [{**row, "causal_history": None} for row in the_story.rows["sds_messages"]]
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    write_deltalake(place / "sds_messages", as_arrow(rows, SDS_MESSAGES), mode="overwrite")
    depths = depth.causal_depth(windowed(place))
    assert len(depths) and {*depths["depth"], *depths["named"]} == {0}


# Loss


def test_every_cause_is_counted(source: TableWindow, the_story: Story) -> None:
    lost = [r for r in the_story.rows["delivery_status"] if r["verdict"] != "delivered"]
    wanted = Counter((r["verdict"], r["cause"] or loss.UNEXPLAINED) for r in lost)
    found = {(r.verdict, r.cause): r.messages for r in loss.causes(source).itertuples()}
    assert found == dict(wanted)
    assert loss.causes_by_channel(source)["messages"].sum() == len(lost)
    assert loss.losses_over_time(source)["messages"].sum() == len(lost)


def test_runs_of_losses_are_found_in_the_order_of_the_channel(source: TableWindow) -> None:
    found = loss.bursts(source)
    files = found[found["channel_id"] == "files"]
    assert dict(zip(files["length"], files["bursts"], strict=True)) == {6: 2}
    assert (found["length"] * found["bursts"]).sum() == loss.causes(source).query("verdict == 'missing'")[
        "messages"
    ].sum()


def test_losses_by_segment_index(source: TableWindow) -> None:
    found = loss.by_segment_index(source).set_index("segment_index")
    assert found.at[0, "lost"] == 1  # saved by two parity
    assert found.at[3, "expected"] == 20 and found.at[2, "expected"] == 20 + len(HOSTILE)
    assert found.at[1, "lost"] == 2 + len(HOSTILE)


def test_parity_that_saved_and_parity_that_was_one_short(source: TableWindow) -> None:
    found = {(r.parity_count, r.outcome): r.messages for r in loss.parity(source).itertuples()}
    assert found[1, "repaired"] == 1 and found[2, "repaired"] == 1
    assert found[1, "one short"] == 2  # two lost with one parity; one lost and the parity with it
    assert found[1, "more short"] == 1 and found[1, "whole"] == 12


def test_the_newest_incomplete_messages_say_how_short_they_were(source: TableWindow) -> None:
    found = loss.incomplete(source).query("channel_id == 'files' and reason == 'expired'")
    assert sorted(found["short"]) == [1, 1, 1, 3]
    assert "1, 2, 3" in set(found["data_missing"])


def test_stores_that_disagree_are_named(source: TableWindow, the_story: Story) -> None:
    answers = loss.stores(source).set_index(["node", "purpose"])
    assert (
        answers.at[("http://store-b:8645", "audit"), "absent"]
        > 0
        == answers.at[("http://store-a:8645", "audit"), "absent"]
    )
    disagreed = loss.store_disagreement(source)
    row = disagreed.set_index("message_hash").loc[the_story.messages["talk 5"].last.envelope_hash.hex()]
    assert (row["present"], row["absent"]) == ("http://store-a:8645", "http://store-b:8645")
    # The newest answer of a node counts: what it found later is no disagreement any more.
    assert the_story.messages["talk 40"].last.envelope_hash.hex() not in set(disagreed["message_hash"])


def test_what_came_after_the_window_is_neither_awaited_nor_incomplete(tmp_path: Path) -> None:
    at_us, hash_ = 1_767_225_600_000_000, b"h" * 32
    one = {"pubsub_topic": "/p", "content_topic": "/c", "channel_id": "talk", "sender_id": "alice", "sds_id": "x"}
    of_set = {**one, "entire_message_hash": hash_, "sds_ids": ["x"], "data_count": 2}
    place = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0}
    rows: dict[Table, dict[str, Any]] = {
        REFETCH_REQUESTS: {**one, "attempt": 1, "retrieval_hint": hash_, "event_time": at_us},
        INCOMPLETE_MESSAGES: {**of_set, "status": "overdue", "reason": "silent", "event_time": at_us},
        STORE_PRESENCE: {**one, "node": "n", "attempt": 1, "outcome": "present", "purpose": "refetch"}
        | {"message_hash": hash_, "asked_at": at_us + 60_000_000},
        DELIVERIES: {**one, "event_time": at_us + 60_000_000},
        REASSEMBLED_MESSAGES: {**place, **of_set, "sds_ids": ["x", "y"], "event_time": at_us + 60_000_000},
    }
    for table, row in rows.items():
        paths = PathSettings(data_dir=str(tmp_path))
        create_tables(paths, (table,))
        append_rows(paths, table, as_arrow([row], table))
    begin = dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC)
    source = windowed(tmp_path, since=begin, until=begin + dt.timedelta(seconds=30))
    assert loss.refetch_outcome(source)["outcome"].tolist() == ["arrived after all"]
    assert loss.refetch(source)[["requests", "answered", "found"]].to_numpy().tolist() == [[1, 1, 1]]
    assert loss.incomplete(source).empty
    source.choose(Window(since=begin + dt.timedelta(seconds=30), until=begin + dt.timedelta(days=1)))
    assert loss.refetch_outcome(source).empty and loss.refetch(source).empty


def test_refetches_by_attempt_and_by_outcome(source: TableWindow) -> None:
    attempts = loss.refetch(source).set_index("attempt")
    assert (attempts["answered"] + attempts["failed"]).tolist() == attempts["requests"].tolist(), (
        "an error is no answer"
    )
    assert attempts.at[1, "found"] == 1 and attempts.at[2, "failed"] == 1 and attempts.at[3, "requests"] == 1
    outcomes = {(r.hint, r.outcome): r.messages for r in loss.refetch_outcome(source).itertuples()}
    assert outcomes[True, "arrived after all"] == 1 and outcomes[False, "lost"] == 1


# Quarantine


def test_what_was_refused(source: TableWindow, the_story: Story) -> None:
    assert quarantine.reasons(source)["records"].sum() == len(the_story.rows["quarantine"])
    share = quarantine.share(source).iloc[0]
    dropped = sum(r["disposition"] == "dropped" for r in the_story.rows["quarantine"])
    assert share["refused"] == dropped and share["records"] > len(the_story.rows["envelopes"])
    gaps = quarantine.source_gaps(source).set_index("name")
    assert gaps.at["bridge-1", "status"] == "filled" and gaps["status"].iloc[0] == "open"


def test_without_gaps_no_message_is_read_to_judge_them(source: TableWindow, sample_tables: Path) -> None:
    before_any = windowed(sample_tables, until=dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
    gaps = quarantine.source_gaps(before_any)
    assert gaps.empty and [*gaps.columns] == [*quarantine.source_gaps(source).columns]
    assert "sds_messages" not in before_any._loaded


def test_a_gap_is_shown_with_what_senders_dispatched_meanwhile_and_nobody_saw(
    source: TableWindow, the_story: Story
) -> None:
    gaps = quarantine.source_gaps(source).set_index("name")
    seen = {(row["content_topic"], row["channel_id"], row["sds_id"]) for row in the_story.rows["sds_messages"]}
    first: dict[tuple[str, str, str], dt.datetime] = {}
    for row in the_story.rows["sender_events"]:
        if row["event"] in ("sent", "resent") and row["sds_id"] is not None:
            key = (row["content_topic"], row["channel_id"], row["sds_id"])
            first[key] = min(first.get(key, row["event_time"]), row["event_time"])
    assert first
    for gap in the_story.rows["source_gaps"]:
        if gap["from_time"] is not None and gap["to_time"] is not None:
            inside = {key for key, at in first.items() if gap["from_time"] <= at <= gap["to_time"]}
            assert gaps.at[gap["name"], "sent"] == len(inside)
            assert gaps.at[gap["name"], "unseen"] == len(inside - seen)


# Capacity


def test_capacity_adds_up_the_micro_batches(source: TableWindow, the_story: Story) -> None:
    rows = [r for r in the_story.rows["pipeline_metrics"] if r["query"] == "ingest"]
    read = sum(r["value"] for r in rows if r["metric"] == "input_rows")
    busy = sum(r["value"] for r in rows if r["metric"] == "trigger_execution_ms")
    ingest = capacity.summary(source).set_index("query").loc["ingest"]
    assert ingest["rows"] == read and ingest["micro_batches"] == 12
    assert ingest["rows_per_s"] == pytest.approx(read / (busy / 1000))
    costs = capacity.cost(source).set_index("query")
    assert costs.at["ingest", "ms_per_record"] == pytest.approx(busy / read)
    assert costs.at["ingest", "ms_per_message"] == pytest.approx(busy / len(the_story.rows["delivered_messages"]))


def test_lag_knows_its_unit_and_phases_share_the_time(source: TableWindow) -> None:
    lag = capacity.lag(source)
    assert set(lag[lag["query"] == "ingest"]["unit"]) == {"records"}
    assert set(lag[lag["query"] != "ingest"]["unit"]) == {"commits"}
    assert capacity.phases(source).groupby("query")["share"].sum().tolist() == pytest.approx([1, 1, 1])
    assert len(capacity.state(source)) == 24 and (capacity.throughput(source)["rows_per_s"] > 0).all()


# One message


@pytest.mark.parametrize("name", ["talk 3", "saved by one parity", "hostile 3", "hostile 7", "held back", "talk 20"])
def test_a_message_is_found_by_any_of_its_names(source: TableWindow, the_story: Story, name: str) -> None:
    message = the_story.messages[name]
    names = [message.last.sds_id, message.last.sds_id[:12] + "…"]
    if message.last.arrived:
        names += [message.payload_hash.hex()[:12], "0x" + message.last.envelope_hash.hex()]
        names += [
            f"{digits[:12]}…{digits[-4:]}" for digits in (message.payload_hash.hex(), message.last.envelope_hash.hex())
        ]
    for wanted in names:
        found = investigate.find(source, wanted)
        assert any(set(message.sds_ids) & set(m.sds_ids) for m in found), wanted
    assert investigate.find(source, message.last.sds_id)[0].channel_id == message.channel_id


def test_too_little_or_another_end_finds_nothing(source: TableWindow, the_story: Story) -> None:
    assert (
        investigate.find(source, "") == investigate.find(source, "ab ") == investigate.find(source, "no such id") == []
    )
    assert investigate.find(source, the_story.messages["talk 3"].last.sds_id[:12] + "…zzzz") == []


def test_a_message_without_a_verdict_is_found_by_its_segments(
    tmp_path: Path, sample_tables: Path, the_story: Story
) -> None:
    shutil.copytree(sample_tables / "sds_messages", tmp_path / "sds_messages")
    message = the_story.messages["whole"]
    tables = TableWindow(tmp_path)
    (found,) = investigate.find(tables, message.last.sds_id)
    assert found.verdict is None and found.payload_hash == message.payload_hash.hex()
    (begun,) = investigate.find(tables, found.payload_hash[:12])
    assert investigate.find_exact(tables, begun.message_key, begun.channel) == [begun], "its page opens"


def test_the_time_line_holds_what_every_table_says(source: TableWindow, the_story: Story) -> None:
    (message,) = investigate.find(source, the_story.messages["saved by one parity"].last.sds_id)
    events = investigate.timeline(source, message)
    counts = Counter(events["lane"])
    assert counts == {
        "sender": 10, "envelope": 4, "vantage": 20, "segment": 5, "delivery": 6, "acknowledgement": 5,
    }  # fmt: skip
    assert list(events["time"]) == sorted(events["time"])
    assert "rebuilt by parity" in set(events["detail"])


def test_the_time_line_of_what_never_came(source: TableWindow, the_story: Story) -> None:
    (message,) = investigate.find(source, the_story.messages["talk 20"].last.sds_id)
    counts = Counter(investigate.timeline(source, message)["lane"])
    assert counts == {"refetch": 3, "store": 6, "repair": 2, "loss": 1}


def test_the_causal_graph_has_its_past_and_its_future(source: TableWindow, the_story: Story) -> None:
    def node(name: str) -> str:
        return the_story.messages[name].last.sds_id

    (message,) = investigate.find(source, node("talk 21"))
    found = graph.graph(source, message)
    generations = {n.sds_id: n.generation for n in found.nodes}
    assert generations[node("talk 21")] == 0
    assert generations[node("talk 20")] == generations[node("talk 19")] == -1 and generations[node("talk 18")] == -2
    assert generations[node("talk 22")] == generations[node("talk 23")] == 1
    assert (node("talk 21"), node("talk 20")) in found.edges
    assert {n.sds_id for n in found.nodes if not n.known} == {node("talk 20")}
    small = graph.graph(source, message, most=3)
    assert len(small.nodes) == 3 and small.cut and not found.cut


def test_a_message_looks_the_same_in_every_window_that_has_it(
    source: TableWindow, sample_tables: Path, the_story: Story
) -> None:
    """What is outside of the window, or of another sender, is no message that did not arrive."""
    (message,) = investigate.find(source, the_story.messages["talk 21"].last.sds_id)
    narrow = windowed(sample_tables, since=message.first_seen, until=message.delivered_at, sender_id="alice")
    assert graph.graph(narrow, message) == graph.graph(source, message)
    pd.testing.assert_frame_equal(investigate.timeline(narrow, message), investigate.timeline(source, message))


def test_the_causal_graph_of_one_message_loads_no_channel(sample_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a message draws it again whenever its tables change, and a channel may have a million messages."""
    opened = TableWindow(sample_tables)
    message = investigate.example(opened)
    total = opened.select("SELECT count(*) AS messages FROM sds_messages")[0]["messages"]
    read: list[int] = []
    select = TableSnapshot.select

    def count(snapshot: TableSnapshot, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        rows = select(snapshot, sql, parameters)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(TableSnapshot, "select", count)
    monkeypatch.setattr(TableWindow, "rows", None)
    nodes = graph.graph(opened, message).nodes
    assert len(nodes) > 1
    assert max(read) <= len(nodes) < total


def test_an_example_lacks_a_segment(source: TableWindow, tmp_path: Path) -> None:
    assert investigate.example(source).cause == "segment_missing"
    with pytest.raises(LocalError, match="No message is known"):
        investigate.example(TableWindow(tmp_path))


def test_the_story_is_in_the_window_of_its_hours(sample_tables: Path) -> None:
    nothing = windowed(sample_tables, since=AS_OF, until=AS_OF + dt.timedelta(days=1))
    assert delivery.by_channel(nothing).empty
    assert not delivery.by_channel(windowed(sample_tables, since=START - dt.timedelta(days=1))).empty

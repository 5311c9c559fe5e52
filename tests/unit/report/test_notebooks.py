"""What is kept of the notebooks: their sources alone, in cells that fit on a screen."""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import altair as alt
import nbformat
import pandas as pd
import pytest

from reliable_channel.analysis.report import capacity, delivery, incidents, investigate, loss, splits
from reliable_channel.analysis.report.charts import incidents as charts
from reliable_channel.analysis.report.notebook import (
    WindowChoice,
    choices,
    compare,
    conclusion,
    html,
    open_tables,
    split_window,
    tables,
)
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import DELIVERY_STATUS, PIPELINE_METRICS, SDS_MESSAGES, STORE_PRESENCE, Table

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
SCREEN = 25
"""Lines."""


def test_they_are_all_there() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["bad-day", "capacity", "delivery", "investigate", "loss"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_is_kept_without_outputs_in_cells_that_fit_on_a_screen(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert len(cell.source.splitlines()) <= SCREEN
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert set(cell.metadata) <= {"tags"}
    tagged = [cell.source for cell in notebook.cells if cell.metadata.get("tags") == ["parameters"]]
    assert [re.findall(r"^(\w+) = \"\"", source, re.MULTILINE)[:4] for source in tagged] == [
        ["since", "until", "channel", "sender"]
    ], "papermill replaces these"
    second = next(cell.source for cell in notebook.cells if "open_tables" in cell.source)
    assert second.splitlines()[-1] == "notebook.WindowChoice(source)"


def test_the_tables_of_a_notebook_are_those_of_the_variable_in_a_window(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(sample_tables))
    source = open_tables("2026-11-01T12:00", "2026-11-01T12:10", channel="talk")
    assert source.rows("delivered_messages", ["channel_id"]).num_rows == 10
    assert alt.renderers.active == "svg"


def test_a_notebook_chooses_a_channel_and_a_sender_from_what_there_is(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(sample_tables))
    offered = choices(open_tables())
    row = next(row for row in offered.itertuples() if row.channel == "talk" and row.sender)
    chosen = choices(open_tables(channel=row.channel, sender=row.sender))
    assert [(r.channel, r.sender, r.messages) for r in chosen.itertuples()] == [(row.channel, row.sender, row.messages)]


def fields_of(choice: WindowChoice) -> dict[str, Any]:
    """The fields of the form by their names, and the line below them."""
    _, fields, outcome = choice._form.children
    return {**{field.description: field for field in fields.children}, "outcome": outcome}


def test_what_is_chosen_in_the_form_counts_for_the_cells_below(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(sample_tables))
    source = open_tables(until="2026-11-01T12:30")
    shown = WindowChoice(source)
    fields = fields_of(shown)
    assert fields["until"].value == "2026-11-01T12:30:00+00:00"
    delivery.acknowledgement_curve(source, by="evidence")  # a table that a window keeps
    fields["channel"].value = "talk"
    fields["until"].value = "2026-11-01T12:10"
    assert source.window == open_tables(until="2026-11-01T12:10", channel="talk").window
    assert set(delivery.acknowledgement_latency(source, by="channel_id")["name"]) == {"talk"}
    counted = choices(source)["messages"].sum()
    assert fields["outcome"].value.startswith(f"{counted} messages.")
    fields["since"].value = "yesterday"
    assert "'yesterday' is not a time." in fields["outcome"].value
    assert source.window.since is None
    fields["since"].value = ""
    fields["channel"].value = ""
    assert source.window.channel_id is None


def test_a_form_offers_what_is_there_escaped_and_the_chosen_name_even_if_it_is_not(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(sample_tables))
    source = open_tables(channel="no\u202esuch")
    labels, names = zip(*fields_of(WindowChoice(source))["channel"].options, strict=True)
    assert names[0] == "" and names[-1] == "no\u202esuch"
    assert all(label.isprintable() for label in labels)
    assert set(choices(open_tables())["channel"].dropna()) <= set(names)


def test_a_front_end_without_widgets_gets_the_table(sample_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TableWindow(sample_tables)
    widget = "application/vnd.jupyter.widget-view+json"
    assert {widget, "text/html"} <= set(WindowChoice(source)._repr_mimebundle_())
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    bundle = WindowChoice(source)._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/html"] == html(choices(source))


def test_tables_have_units_and_everything_in_them_is_escaped() -> None:
    frame = pd.DataFrame(
        {
            "channel_id": ["<script>x</script>", "b"],
            "loss": [0.125, None],
            "p50_ms": [1500.0, float("nan")],
            "payload_bytes": [2048, 1],
            "messages": [12345, 2],
            "first_seen": [pd.Timestamp("2026-11-01 12:00:00.5", tz="UTC"), pd.NaT],
            "sds_ids": [["a", "b"], []],
        }
    )
    cells = re.findall(r"<td>(.*?)</td>", html(frame))
    assert cells[:7] == [
        "&lt;script&gt;x&lt;/script&gt;", "12.5 %", "1.5 s", "2 KiB", "12,345", "2026-11-01 12:00:00", "a, b",
    ]  # fmt: skip
    assert cells[7:] == ["b", "–", "–", "1 B", "2", "–", "–"]
    assert "<caption>50 rows more</caption>" in html(pd.DataFrame({"n": range(100)}))


def test_without_the_variable_they_are_those_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIABLE_CHANNEL_TABLES", raising=False)
    (tmp_path / "build/demo/tables").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    for place in (tmp_path, tmp_path / "notebooks"):
        monkeypatch.chdir(place)
        assert tables().resolve() == tmp_path / "build/demo/tables"
    with pytest.raises(EnvironmentFault, match="no Delta tables"):
        open_tables()


def test_the_conclusion_is_computed_from_the_tables(sample_tables: Path) -> None:
    source = TableWindow(str(sample_tables))
    totals = source.query("SELECT count(*) FILTER (verdict <> 'unknown') AS settled FROM delivery_status")
    assert f"of {totals['settled'][0]} settled messages are missing." in conclusion(source)
    assert conclusion(TableWindow(str(sample_tables / "nowhere"))) == "No message of this window is settled."


def test_the_cost_is_described_from_the_tables(sample_tables: Path) -> None:
    source = TableWindow(str(sample_tables))
    queries = capacity.summary(source)
    described = capacity.describe(source)
    assert described.startswith(f"{queries['query'][0]} was busy longest, ")
    assert all(name in described.split("behind: ")[1] for name in queries[queries["lag"] > 0]["query"])
    nowhere = TableWindow(str(sample_tables / "nowhere"))
    assert capacity.describe(nowhere) == "No micro-batch was recorded in this window."


def test_incidents_of_quiet_tables_are_none_and_their_charts_say_so(
    sample_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = TableWindow(str(sample_tables))
    assert incidents.list_splits(quiet).empty
    assert set(incidents.list_store_answers(quiet)) == {"time", "present", "absent", "missing", "share"}
    nowhere = TableWindow(str(tmp_path))
    assert incidents.describe(nowhere) == "No split, no outage of a store and no flood in this window."
    for drawn in (
        charts.known_shares(incidents.list_known(nowhere)),
        charts.store_answers(incidents.list_store_answers(nowhere)),
        charts.new_names(incidents.list_new_names(nowhere)),
    ):
        assert drawn.to_dict()


def test_the_contacts_of_all_channels_are_read_once(sample_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=splits.read_contacts)
    monkeypatch.setattr(incidents, "read_contacts", read)
    source = TableWindow(str(sample_tables))
    incidents.describe(source), incidents.list_splits(source), incidents.list_known(source)
    assert read.call_count == 1
    source.choose(Window(channel_id="talk"))
    incidents.describe(source)
    assert read.call_args.args[1:3] == ("channel_id = $channel", {"channel": "talk"}), "only those of the chosen window"


def test_a_missing_message_counts_once_however_many_segments_stores_lack(tmp_path: Path) -> None:
    channel = {"pubsub_topic": "/p", "content_topic": "/c", "channel_id": "talk"}
    at = 1_767_225_600_000_000
    asked = [{**channel, "node": "n", "sds_id": one, "outcome": "absent", "asked_at": at} for one in ("a", "b")]
    missing = {
        **channel,
        "message_key": "k",
        "sds_ids": ["a", "b"],
        "verdict": "missing",
        "first_seen": at,
        "as_of": at,
    }
    write(tmp_path, STORE_PRESENCE, asked)
    write(tmp_path, DELIVERY_STATUS, [missing])
    answers = incidents.list_store_answers(TableWindow(tmp_path)).iloc[0]
    assert (answers["absent"], answers["missing"]) == (2, 1)


def write(place: Path, table: Table, rows: list[dict[str, Any]]) -> None:
    paths = PathSettings(data_dir=str(place))
    create_tables(paths, (table,))
    append_rows(paths, table, as_arrow(rows, table))


def test_stores_are_not_blamed_for_what_one_participant_alone_claims(tmp_path: Path) -> None:
    channel = {"pubsub_topic": "/p", "content_topic": "/c", "channel_id": "talk"}
    at = 1_767_225_600_000_000
    verdicts = [("real", "delivered", None), *((f"claim {n}", "unknown", "claimed_by_one") for n in range(30))]
    judged = [
        {**channel, "message_key": name, "sds_ids": [name], "verdict": verdict, "cause": cause, "first_seen": at}
        for name, verdict, cause in verdicts
    ]
    outcomes = [
        {**channel, "node": "n", "sds_id": name, "outcome": "absent" if cause else "present", "asked_at": at}
        for name, _, cause in verdicts
    ]
    write(tmp_path, DELIVERY_STATUS, judged)
    write(tmp_path, STORE_PRESENCE, outcomes)
    source = TableWindow(tmp_path)
    (answers,) = incidents.list_store_answers(source).itertuples()
    assert (answers.present, answers.absent, answers.share) == (1, 0, 1.0)
    assert incidents.describe(source) == "No split, no outage of a store and no flood in this window."
    assert choices(source)["messages"].sum() == 1, "a claim is no message"
    assert loss.losses_over_time(source).empty


def test_a_new_name_is_one_that_sent_no_other_message_at_any_time(tmp_path: Path) -> None:
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    sent = [("alice", "a", 0), ("alice", "b", 60), ("bob", "c", 60), ("bob", "c", 61), ("carol", "d", 200)]
    rows = [
        {
            **{"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": offset, "channel_id": "talk"},
            **{"sender_id": sender, "sds_id": sds_id, "sds_kind": "content"},
            "event_time": int((begin + dt.timedelta(minutes=minute)).timestamp()) * 10**6,
        }
        for offset, (sender, sds_id, minute) in enumerate(sent)
    ]
    write(tmp_path, SDS_MESSAGES, rows)
    hour = Window(begin + dt.timedelta(minutes=30), begin + dt.timedelta(minutes=90))
    assert incidents.list_new_names(TableWindow(tmp_path, hour))["senders"].tolist() == [1], "bob, of whom a copy came"
    assert incidents.list_new_names(TableWindow(tmp_path))["senders"].sum() == 2
    assert incidents.list_new_names(TableWindow(tmp_path, Window(channel_id="other"))).empty


def test_a_message_costs_the_same_whichever_channel_is_looked_at(sample_tables: Path) -> None:
    everything = capacity.cost(TableWindow(sample_tables))
    one = capacity.cost(TableWindow(sample_tables, Window(channel_id="talk", sender_id="alice")))
    pd.testing.assert_frame_equal(one, everything)


def test_queries_whose_lag_is_not_known_are_not_called_up_to_date(tmp_path: Path) -> None:
    batch = {"query": "ingest", "run_id": "r", "batch_id": 0, "recorded_at": 1_767_225_600_000_000}
    took = [{**batch, "metric": metric, "value": 1_000.0} for metric in ("input_rows", "trigger_execution_ms")]
    write(tmp_path, PIPELINE_METRICS, took)
    assert "behind" not in capacity.describe(TableWindow(tmp_path))
    write(tmp_path, PIPELINE_METRICS, [{**batch, "metric": "lag_offsets", "value": 0.0}])
    assert capacity.describe(TableWindow(tmp_path)).endswith("At the end no query was behind.")


def test_two_windows_stand_beside_each_other(sample_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(sample_tables))
    everything = TableWindow(str(sample_tables))
    both = compare(open_tables(until="2026-11-01T12:30"), open_tables("2026-11-01T12:30"))
    row = both.set_index("channel_id").loc["talk"]
    counted = everything.query("SELECT count(*) AS n FROM delivery_status WHERE channel_id = 'talk'")["n"][0]
    assert row["messages_first"] + row["messages_second"] == counted
    assert row["change"] == pytest.approx(row["loss_second"] - row["loss_first"])
    changes = list(both["change"].dropna())
    assert changes == sorted(changes, reverse=True)


def test_the_halves_are_of_the_chosen_window_channel_and_sender(sample_tables: Path) -> None:
    begin, end = (dt.datetime(2026, 11, 1, 12, minute, tzinfo=dt.UTC) for minute in (10, 40))
    source = TableWindow(str(sample_tables), Window(begin, end, "talk", sender_id="alice"))
    count = "SELECT count(*) AS n FROM delivery_status"
    halves = [half.query(count)["n"][0] for half in split_window(source)]
    assert min(halves) > 0 and sum(halves) == source.query(count)["n"][0]
    assert compare(*split_window(TableWindow(str(sample_tables / "nowhere")))).empty


def test_a_message_is_shown_as_a_table_of_escaped_words(sample_tables: Path) -> None:
    source = TableWindow(str(sample_tables))
    keys = source.query("SELECT message_key FROM delivery_status")["message_key"]
    shown = [investigate.find(source, key)[0]._repr_html_() for key in keys]
    assert any("segment missing" in one for one in shown)
    assert not [one for one in shown if "<script" in one or "<img" in one]

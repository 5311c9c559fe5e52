"""One bad row never spoils what is read with it: every reader of tables that needs no Spark, over every table."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from reliable_channel.analysis.alerts.measure import measure_rule
from reliable_channel.analysis.alerts.rules import LossRate, QuarantineRate, SilentChannel
from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.figures import read_clock
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.cli.app import build
from reliable_channel.config import PathSettings, Settings, load
from reliable_channel.evidence.audit import choose_sample
from reliable_channel.evidence.delta_source import DeltaSource
from reliable_channel.evidence.refetch import refetch
from reliable_channel.lake.create import create_table
from reliable_channel.lake.follow import list_files_of_records, list_files_since
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import BY_NAME, TABLES
from reliable_channel.pipeline.maintenance import maintain
from reliable_channel.transport.store.client import NodeAnswer
from reliable_channel.transport.store.model import StoreQuery
from tests.support.bad_rows import spoil

CENTURY_MS = 100 * 365 * 86_400_000


@pytest.fixture(scope="module")
def spoiled(sample_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("spoiled") / "tables"
    shutil.copytree(sample_tables, place)
    spoil(place, beyond=True)
    return place


def settings_of(tables: Path, **more: Any) -> Settings:
    return load("local", paths={"data_dir": str(tables), "run_dir": str(tables.parent / "run")}, **more)


def command(tables: Path, *arguments: str) -> str:
    done = CliRunner().invoke(build(arguments[0]), [*arguments, "--tables", str(tables)])
    assert done.exception is None, (arguments, done.output, done.exception)
    return done.stdout


def test_the_report_says_the_same_of_every_other_channel(sample_tables: Path, spoiled: Path) -> None:
    def channels(tables: Path) -> dict[str, Any]:
        found = json.loads(command(tables, "report", "--json"))["channels"]
        return {row["channel_id"]: row for row in found if row["channel_id"] in ("talk", "files", "sealed", "quiet")}

    assert len(channels(sample_tables)) == 4
    assert channels(spoiled) == channels(sample_tables)


def test_every_form_of_the_report_is_written(spoiled: Path, tmp_path: Path) -> None:
    command(spoiled, "report")
    command(spoiled, "report", "--channel", "talk")
    command(spoiled, "report", "--html", str(tmp_path / "report.html"))


def test_status_and_alerts_are_told(spoiled: Path) -> None:
    assert len(json.loads(command(spoiled, "status", "--json", "--no-kafka"))["tables"]) == len(TABLES)
    command(spoiled, "status", "--no-kafka")
    lake = TableSnapshot(PathSettings(data_dir=str(spoiled)))
    now = read_clock(lake)
    assert now is not None
    rules = [
        LossRate(alert="loss", kind="loss_rate", window_ms=CENTURY_MS, above=0.0, at_least=1),
        QuarantineRate(alert="refused", kind="quarantine_rate", window_ms=CENTURY_MS, above=0.0, at_least=1),
        SilentChannel(alert="silent", kind="silent_channel", window_ms=CENTURY_MS, above_ms=1),
    ]
    for rule in rules:
        measure_rule(lake, rule, dt.datetime(2026, 11, 1, 14, tzinfo=dt.UTC), dt.datetime.now(dt.UTC))


@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_a_question_gives_every_row(table: str, spoiled: Path, tmp_path: Path) -> None:
    question = f"SELECT * FROM {table}"  # noqa: S608 - names of our own
    assert len(json.loads(command(spoiled, "sql", question, "--json"))) >= 3 or table == "clock"
    create_table(tmp_path / table, BY_NAME[table])
    spoil(tmp_path, [BY_NAME[table]], beyond=True)
    assert command(tmp_path, "sql", question).endswith("(3 rows)\n")


def test_every_page_of_the_dashboard_answers(spoiled: Path) -> None:
    app = create_app(PathSettings(data_dir=str(spoiled)))
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    seen: set[str] = set()
    times: Counter[str] = Counter()
    waiting = ["/?last=all", "/channels?last=all", "/messages?last=all", "/quarantine?last=all", "/alerts"]
    while waiting:
        address = waiting.pop(0)
        page = address.partition("?")[0]
        if address in seen or times[page] == 2:
            continue
        seen.add(address)
        times[page] += 1
        answer = client.get(address)
        assert answer.status_code < 500, address
        if "html" in answer.headers["content-type"]:
            waiting += [html.unescape(each) for each in re.findall(r'(?:href|src)="(/[^"]+)"', answer.text)]


class Asked:
    """A store client that knows one node, which has nothing, and takes no hash that is none."""

    nodes = ("http://store-a:8645",)

    def __init__(self) -> None:
        self.hashes: list[bytes] = []

    def look_up(self, hashes: list[bytes], *, include_data: bool = True, on_page: Any = None) -> list[NodeAnswer]:
        assert all(len(each) == 32 for each in hashes)
        self.hashes += hashes
        return []

    def walk_each(self, query: StoreQuery) -> Iterator[Any]:
        assert 0 <= (query.start_time_ns or 0) <= (query.end_time_ns or 0) < 2**63
        return iter(())


def test_refetch_asks_for_all_the_same(sample_tables: Path, spoiled: Path, tmp_path: Path) -> None:
    asked = []
    for number, tables in enumerate((sample_tables, spoiled)):
        place = tmp_path / str(number) / "tables"
        shutil.copytree(tables, place)
        client = Asked()
        refetch(settings_of(place), client, lambda entries: None)  # type: ignore[arg-type]
        asked.append(set(client.hashes))
    assert asked[0]
    assert asked[1] >= asked[0]


def test_the_audit_has_its_sample(sample_tables: Path, spoiled: Path) -> None:
    audit = {"audit": {"share": 1.0, "within_ms": 10**12, "after_ms": 0}}
    now, nothing = dt.datetime(2026, 11, 1, 14, tzinfo=dt.UTC), pa.chunked_array([], pa.binary())
    found = [
        {one.message_hash for one in choose_sample(settings_of(t, store=audit), now, nothing)}
        for t in (sample_tables, spoiled)
    ]
    assert found[0]
    assert found[1] >= found[0]


def test_a_store_has_every_envelope_that_is_one(sample_tables: Path, spoiled: Path, tmp_path: Path) -> None:
    found = []
    for number, tables in enumerate((sample_tables, spoiled)):
        source = DeltaSource(str(tables / "envelopes"), tmp_path / f"{number}.db")
        source.refresh()
        positions = source.select(StoreQuery(), None, 10_000)
        source.load([position.message_hash for position in positions])
        found.append(set(positions))
        source.close()
    assert found[0]
    assert found[1] == found[0]


@pytest.mark.parametrize("name", ["reassembled_messages", "ordered_sds_messages", "sds_messages"])
def test_a_look_up_by_time_or_record_leaves_out_no_such_file(name: str, sample_tables: Path, tmp_path: Path) -> None:
    shutil.copytree(sample_tables, tmp_path / "tables")
    paths, table = settings_of(tmp_path / "tables").paths, BY_NAME[name]
    everywhere = {partition: [0, 2**62] for partition in range(8)}

    def count() -> tuple[int, int]:
        opened = open_table(paths, table)
        return len(list_files_since(opened, "event_time", 0)), len(list_files_of_records(opened, everywhere))

    before = count()
    spoil(tmp_path / "tables", beyond=True)
    assert count()[0] == before[0] + 1
    assert count()[1] >= before[1]


def test_maintenance_does_its_work(sample_tables: Path, tmp_path: Path) -> None:
    shutil.copytree(sample_tables, tmp_path / "tables")
    spoil(tmp_path / "tables", beyond=True)
    assert {done.table for done in maintain.run(settings_of(tmp_path / "tables"))} == {table.name for table in TABLES}

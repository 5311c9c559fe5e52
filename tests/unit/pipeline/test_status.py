"""``reliable-channel status`` says how tables and jobs stand, without Spark, and never lets a name from outside act."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.status import collect
from reliable_channel.analysis.status_text import lines
from reliable_channel.analysis.text import printable
from reliable_channel.cli import main
from reliable_channel.config import Settings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake import tables
from reliable_channel.lake.history import select_unread
from reliable_channel.lake.open_hashes import HashDue, OpenHashes
from reliable_channel.lake.tables import micros

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
HOSTILE = "\x1b[2J\u202eevil\n\\x"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load("local", paths={"run_dir": str(tmp_path)})


def write(settings: Settings, table: tables.Table, rows: list[dict[str, Any]]) -> str:
    """Append rows, as one commit; returns the table's id."""
    place = settings.paths.table(table.name)
    write_deltalake(place, pa.Table.from_pylist(rows), mode="append")
    return str(DeltaTable(place).metadata().id)


def checkpoint(settings: Settings, query: str, query_id: str, *sources: dict[str, Any]) -> None:
    root = Path(settings.paths.checkpoint(query))
    for part in ("offsets", "commits"):
        (root / part).mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": query_id}))
    entry = {"batchTimestampMs": 1795262323497, "conf": {}}
    (root / "offsets" / "7").write_text("\n".join(["v1", json.dumps(entry), *map(json.dumps, sources)]))
    (root / "commits" / "7").write_text("v1\n{}")


def reads(table_id: str, version: int) -> dict[str, Any]:
    return {"reservoirId": table_id, "reservoirVersion": version, "index": -1}


def dependency(sds_id: str, minutes: int, channel: str = "talk") -> dict[str, Any]:
    place = {"pubsub_topic": "/p", "content_topic": "/c", "channel_id": channel, "sds_id": sds_id}
    return {**place, "event_time": NOON + dt.timedelta(minutes=minutes)}


def test_rows_versions_and_writes_come_from_the_logs(settings: Settings) -> None:
    for count in (2, 3):
        write(settings, tables.QUARANTINE, [{"reason": "null_value"}] * count)
    found = collect(settings)["tables"]
    assert [(t["name"], t["rows"], t["files"], t["version"]) for t in found] == [("quarantine", 5, 2, 1)]
    written = dt.datetime.fromisoformat(found[0]["last_write"])
    assert written.tzinfo is not None
    assert any("quarantine" in line and " 5 " in line for line in lines(collect(settings)))


def test_the_lag_of_a_job_is_what_it_has_not_read(settings: Settings) -> None:
    for count in (2, 3, 4):
        table_id = write(settings, tables.SDS_MESSAGES, [{"sds_id": "x"}] * count)
    checkpoint(settings, "reassembly", "q1", reads(table_id, 1))
    source = collect(settings)["jobs"][0]["sources"][0]
    assert (source["source"], source["behind"], source["commits"]) == ("sds_messages", 7, 2)
    assert any("sds_messages: 7 rows behind, since " in line for line in lines(collect(settings)))


def test_a_lag_beyond_the_commits_that_are_examined_is_a_least_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (2, 3, 4):
        table_id = write(settings, tables.SDS_MESSAGES, [{"sds_id": "x"}] * count)
    checkpoint(settings, "reassembly", "q1", reads(table_id, 0))
    for limit, least in ((3, ""), (2, "at least ")):
        monkeypatch.setattr("reliable_channel.analysis.status.HISTORY_LIMIT", limit)
        said = lines(collect(settings))
        rows = 9 if limit == 3 else 7
        (line,) = [line for line in said if f"sds_messages: {least}{rows} rows behind, since " in line]
        assert line.endswith(" or earlier") == bool(least)


def test_maintenance_is_not_lag(settings: Settings) -> None:
    for _ in range(2):
        table_id = write(settings, tables.SDS_MESSAGES, [{"sds_id": "x"}])
    checkpoint(settings, "reassembly", "q1", reads(table_id, 2))
    table = DeltaTable(settings.paths.table("sds_messages"))
    table.optimize.compact()
    table.delete("sds_id = 'x'")
    assert DeltaTable(settings.paths.table("sds_messages")).version() == 3
    assert "    sds_messages: nothing left to read" in lines(collect(settings))


def test_the_history_of_spark_and_of_delta_rs_is_understood() -> None:
    history = [
        {"version": 5, "operation": "UNSET TBLPROPERTIES", "timestamp": 50},
        {"version": 4, "operation": "ADD CONSTRAINT", "timestamp": 40},
        {"version": 3, "operation": "OPTIMIZE", "timestamp": 30},
        {"version": 2, "operation": "WRITE", "timestamp": 20, "operationMetrics": {"num_added_rows": 4}},
        {"version": 1, "operation": "STREAMING UPDATE", "timestamp": 10, "operationMetrics": {"numOutputRows": "5"}},
        {"version": 0, "operation": "CREATE TABLE", "timestamp": 0},
    ]
    assert [(c.version, c.time_ms, c.rows) for c in select_unread(history, 0)] == [(1, 10, 5), (2, 20, 4)]
    assert select_unread(history, 3) == []


def test_ingest_is_behind_kafka_by_offsets(settings: Settings) -> None:
    write(settings, tables.ENVELOPES, [{"value": b"x"}])
    checkpoint(settings, "ingest", "q0", {"waku.envelopes": {"0": 10, "1": 5}})
    source = collect(settings, lambda topic: {0: 14, 1: 5, 2: 3})["jobs"][0]["sources"][0]
    assert (source["source"], source["behind"]) == ("kafka waku.envelopes", 7)


def test_a_broker_that_fails_or_hangs_leaves_the_lag_unknown(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_channel.analysis.status.KAFKA_PATIENCE_S", 0.05)
    write(settings, tables.ENVELOPES, [{"value": b"x"}])
    checkpoint(settings, "ingest", "q0", {"waku.envelopes": {"0": 10}})
    released = threading.Event()

    def fails(topic: str) -> dict[int, int]:
        raise OSError("no broker")

    def hangs(topic: str) -> dict[int, int]:
        released.wait(60)
        return {}

    for newest in (fails, hangs):
        assert "    kafka waku.envelopes: lag unknown" in lines(collect(settings, newest))
    released.set()


def test_open_sets_are_those_after_the_last_committed_micro_batch(settings: Settings) -> None:
    checkpoint(settings, "reassembly", "q1")
    assert collect(settings)["open_sets"] == {"count": 0, "next_due": None}, "a checkpoint of an older program"
    later, place = NOON + dt.timedelta(minutes=1), ("waku.envelopes", 0)
    for batch_id, dues in ((7, (NOON, later)), (8, (NOON,))):
        changes = [HashDue(number.to_bytes(32, "big"), [(*place, micros(due))]) for number, due in enumerate(dues)]
        OpenHashes().apply(changes).write(settings.paths, batch_id)
    assert collect(settings)["open_sets"] == {"count": 2, "next_due": NOON.isoformat()}


def test_quarantine_is_counted_by_reason(settings: Settings) -> None:
    write(settings, tables.QUARANTINE, [{"reason": r} for r in ("null_value", "malformed_sds", "malformed_sds")])
    assert list(collect(settings)["quarantine"].items()) == [("malformed_sds", 2), ("null_value", 1)]


def test_a_dependency_is_missing_until_it_came_or_was_given_up(settings: Settings) -> None:
    asked = [dependency("lost", 0), dependency("came", 1), dependency("open", 3), dependency("open", 5)]
    write(settings, tables.REFETCH_REQUESTS, [*asked, dependency("came", 2, "another channel")])
    write(settings, tables.LOST_DEPENDENCIES, [dependency("lost", 6)])
    write(settings, tables.DELIVERIES, [dependency("came", 4)])
    missing = collect(settings)["missing_dependencies"]
    assert missing["count"] == 2
    assert (missing["oldest"]["sds_id"], missing["oldest"]["channel_id"]) == ("came", "another channel")


def test_names_from_the_network_cannot_act_on_the_terminal(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settings, tables.REFETCH_REQUESTS, [dependency(HOSTILE, 0, HOSTILE)])
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", settings.paths.run_dir)
    for arguments in (["status", "--no-kafka"], ["status", "--json", "--no-kafka"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out = capsys.readouterr().out
        assert ended.value.code == 0
        assert "evil" in out
        assert all(c.isprintable() or c == "\n" for c in out)
        if "--json" in arguments:
            assert json.loads(out)["missing_dependencies"]["oldest"]["sds_id"] == HOSTILE
        else:
            assert "\\x1b[2J\\u202eevil\\n\\\\x" in out


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_place_without_tables_is_a_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "--no-kafka", "--tables", str(tmp_path / "wrong"), *form])
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert f"There are no Delta tables under {tmp_path / 'wrong'}." in err
    assert not form or json.loads(out)["tables"] == []


def test_long_names_are_cut() -> None:
    assert printable("a" * 1_000) == "a" * 80 + "…"


def test_status_loads_neither_spark_nor_pandas(settings: Settings) -> None:
    write(settings, tables.QUARANTINE, [{"reason": "null_value"}])
    code = (
        "import sys, reliable_channel.cli, reliable_channel.analysis.status_text;"
        "from reliable_channel.analysis.status import collect; from reliable_channel.config import load;"
        "assert collect(load('local', paths={'run_dir': sys.argv[1]}))['quarantine'] == {'null_value': 1};"
        "sys.exit(bool({'pyspark', 'pandas'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, settings.paths.run_dir]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (lambda file: file.unlink(), "VACUUM may have removed a file meanwhile: read it again."),
        (lambda file: file.write_bytes(b"PAR1"), "Check whether its _delta_log is complete;"),
    ],
)
def test_files_that_are_gone_or_torn_are_said_in_a_sentence(
    settings: Settings, damage: Callable[[Path], object], remedy: str
) -> None:
    write(settings, tables.QUARANTINE, [{"reason": "null_value"}])
    for file in Path(settings.paths.table("quarantine")).rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            damage(file)
    with pytest.raises(EnvironmentFault, match=rf"The Delta table quarantine cannot be read: .*{remedy}"):
        collect(settings)
    with pytest.raises(EnvironmentFault, match=rf"The Delta table quarantine cannot be read: .*{remedy}"):
        TableSnapshot(settings.paths).select("SELECT reason FROM quarantine")

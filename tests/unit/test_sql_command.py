"""``reliable-channel sql``: rows as a table, JSON and CSV; a wrong question is one sentence; nothing is changed."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import pytest

from reliable_channel.analysis.report import snapshot
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.cli import main
from reliable_channel.cli.commands.sql import Form, complete, prompt
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.create import create_table
from reliable_channel.lake.tables import BY_NAME
from reliable_channel.lake.tables.views import QUERYABLE
from tests.support.waiting import WAIT_S

COUNTED = (
    "SELECT verdict, count(*) AS messages, max(first_seen) AS newest FROM delivery_status GROUP BY ALL ORDER BY ALL"
)


def ask(capsys: pytest.CaptureFixture[str], tables: Path, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["sql", *words, "--tables", str(tables)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_time_of_another_zone_is_not_called_utc(capsys: pytest.CaptureFixture[str], sample_tables: Path) -> None:
    question = """SELECT max(first_seen) AS at, max(first_seen) AT TIME ZONE 'Asia/Kolkata' AS here,
                  max(first_seen) AT TIME ZONE 'UTC' AS there FROM delivery_status"""
    (row,) = json.loads(ask(capsys, sample_tables, question, "--json")[1])
    assert row["at"] == row["there"] + "Z"
    assert dt.datetime.fromisoformat(row["here"]) - dt.datetime.fromisoformat(row["there"]) == dt.timedelta(
        hours=5, minutes=30
    )


def test_the_three_forms_hold_the_same_rows(capsys: pytest.CaptureFixture[str], sample_tables: Path) -> None:
    rows = TableSnapshot(PathSettings(data_dir=str(sample_tables))).select(COUNTED)
    assert rows
    as_json = json.loads(ask(capsys, sample_tables, COUNTED, "--json")[1])
    as_csv = [*csv.DictReader(io.StringIO(ask(capsys, sample_tables, COUNTED, "--format", "csv")[1]))]
    as_table = ask(capsys, sample_tables, COUNTED)[1]
    for row, from_json, from_csv in zip(rows, as_json, as_csv, strict=True):
        assert (from_json["verdict"], from_json["messages"]) == (row["verdict"], row["messages"])
        assert from_csv["messages"] == str(row["messages"])
        assert from_csv["newest"] == from_json["newest"]
        assert row["verdict"] in as_table
    assert f"({len(rows)} rows)" in as_table


def test_a_number_that_json_does_not_have_is_null(capsys: pytest.CaptureFixture[str], sample_tables: Path) -> None:
    question = "SELECT 'NaN'::DOUBLE AS none, ['-Infinity'::DOUBLE, 1] AS list, 0.5::DOUBLE AS some"
    _, out, _ = ask(capsys, sample_tables, question, "--json")
    assert json.loads(out, parse_constant=pytest.fail) == [{"none": None, "list": [None, 1.0], "some": 0.5}]


@pytest.mark.parametrize("form", get_args(Form))
def test_a_date_that_python_does_not_have_is_a_wrong_question(
    capsys: pytest.CaptureFixture[str], sample_tables: Path, form: Form
) -> None:
    for date in ("DATE 'infinity'", "[TIMESTAMP 'infinity']"):
        status, out, err = ask(capsys, sample_tables, f"SELECT {date}", "--format", form)
        assert (status, out) == (2, "")
        assert err.startswith("reliable-channel: The answer cannot be printed: ")
        assert err.endswith("Cast this column to VARCHAR.\n")


def test_numbers_are_numbers_in_every_form(capsys: pytest.CaptureFixture[str], sample_tables: Path) -> None:
    """DuckDB's sums of whole numbers are decimals in Arrow."""
    question = (
        "SELECT sum(payload_bytes) AS s, -sum(payload_bytes) AS n, 1.25 AS d, 12345678.25::DOUBLE AS f FROM messages"
    )
    (row,) = json.loads(ask(capsys, sample_tables, question, "--json")[1])
    assert isinstance(row["s"], int) and row == {"s": row["s"], "n": -row["s"], "d": 1.25, "f": 12345678.25}
    (cells,) = csv.DictReader(io.StringIO(ask(capsys, sample_tables, question, "--format", "csv")[1]))
    assert cells == {name: str(value) for name, value in row.items()}
    assert "12345678" in ask(capsys, sample_tables, question)[1]


def test_a_time_limit_that_no_timer_can_have_is_refused(
    capsys: pytest.CaptureFixture[str], sample_tables: Path
) -> None:
    status, _, err = ask(capsys, sample_tables, "SELECT 1", "--max-seconds", "1e18")
    assert status == 2
    assert "--max-seconds" in err


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("SELEC 1", "This is not valid SQL"),
        ("SELECT nothing FROM acks", "No such table or column"),
        ("SELECT * FROM orders", "No such table or column"),
        ("DROP TABLE acks", "Only a single SELECT"),
        ("SELECT 1; SELECT 2", "Only a single SELECT"),
        ("SELECT * FROM read_text('/etc/hostname')", "This query failed"),
        ("SELECT cast('x' AS INT)", "This query failed"),
        ("SELECT channel_id, count(*) FROM acks", "This query failed"),
        ("SELECT sds_id + 1 FROM acks", "This query failed"),
        ("SELECT no_function(1)", "This query failed"),
        ("SELECT a.sds_id FROM acks", "No such table or column"),
    ],
)
def test_a_wrong_question_is_one_sentence(
    capsys: pytest.CaptureFixture[str], sample_tables: Path, question: str, sentence: str
) -> None:
    status, out, err = ask(capsys, sample_tables, question)
    assert (status, out) == (2, "")
    assert err.startswith(f"reliable-channel: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("question", ["SELECT count(*) FROM messages", "SELECT send_id FROM sender_events"])
def test_a_column_that_only_a_table_of_another_version_lacks_names_that_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, question: str
) -> None:
    for name, lacks in (("sender_events", "send_id"), ("delivered_messages", "family")):
        table = BY_NAME[name]
        create_table(tmp_path / name, replace(table, columns=tuple(c for c in table.columns if c.name != lacks)))
    create_table(tmp_path / "acks", BY_NAME["acks"])
    status, _, err = ask(capsys, tmp_path, question)
    assert status == 1
    older = "delivered_messages or sender_events" if "messages" in question else "sender_events"
    assert err.startswith(f"reliable-channel: The table {older} was made by another version") and "rebuild" in err
    assert ask(capsys, tmp_path, "SELECT nothing FROM acks")[0] == 2


def test_the_tables_can_be_asked_for(capsys: pytest.CaptureFixture[str], sample_tables: Path) -> None:
    shown = json.loads(ask(capsys, sample_tables, "SHOW TABLES", "--json")[1])
    assert [row["name"] for row in shown] == sorted(QUERYABLE)
    columns = "SELECT table_name, column_name FROM information_schema.columns"
    listed = {
        (row["table_name"], row["column_name"]) for row in json.loads(ask(capsys, sample_tables, columns, "--json")[1])
    }
    assert listed == {(kind.name, name) for kind in QUERYABLE.values() for name in kind.names()}
    described = json.loads(ask(capsys, sample_tables, "DESCRIBE acks", "--json")[1])
    assert [row["column_name"] for row in described] == [*BY_NAME["acks"].names()]


def test_a_table_that_no_job_has_made_yet_has_no_rows_and_the_answer_says_so(
    capsys: pytest.CaptureFixture[str], sample_tables: Path, tmp_path: Path
) -> None:
    shutil.copytree(sample_tables / "clock", tmp_path / "clock")
    status, out, err = ask(capsys, tmp_path, "SELECT count(*) AS n FROM acks", "--json")
    assert (status, json.loads(out)) == (0, [{"n": 0}])
    assert err.startswith("acks does not exist yet") and "reliable-channel run" in err
    assert ask(capsys, tmp_path, "SELECT * FROM messages", "--json")[2].count("do not exist yet") == 1
    assert ask(capsys, tmp_path, "SHOW TABLES", "--json")[2] == ""
    assert ask(capsys, sample_tables, "SELECT count(*) AS messages FROM acks")[2] == ""


@pytest.mark.parametrize("question", [[], ["SELECT 1"], ["SELECT count(*) FROM acks", "--json"]])
def test_a_place_without_one_table_is_a_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, question: list[str]
) -> None:
    status, out, err = ask(capsys, tmp_path / "wrong", *question)
    assert (status, out) == (1, "")
    assert f"There are no Delta tables under {tmp_path / 'wrong'}. Run the pipeline" in err


def test_what_exceeds_the_memory_has_a_place_where_the_current_directory_may_not_be_written(
    monkeypatch: pytest.MonkeyPatch, sample_tables: Path, tmp_path: Path
) -> None:
    """As in `/`, where services run."""
    monkeypatch.setattr(snapshot, "_idle", deque())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (row,) = TableSnapshot(PathSettings(data_dir=str(sample_tables))).select(
        "SELECT current_setting('temp_directory') p"
    )
    assert row["p"].startswith(f"{tmp_path}/reliable-channel-")


def test_a_file_of_another_user_is_not_missing(monkeypatch: pytest.MonkeyPatch, sample_tables: Path) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Failed to open local file '/x/part-0.parquet'. Detail: [errno 13] Permission denied")

    monkeypatch.setattr(snapshot, "run_interruptibly", refuse)
    with pytest.raises(EnvironmentFault, match=r"envelopes cannot be read: this user has no permission\. Run the"):
        TableSnapshot(PathSettings(data_dir=str(sample_tables))).select("SELECT * FROM envelopes")


def test_a_query_finds_nothing_of_the_one_before(sample_tables: Path, tmp_path: Path) -> None:
    """They share connections."""
    paths = PathSettings(data_dir=str(sample_tables))
    assert TableSnapshot(paths).select("SELECT count(*) AS n FROM messages")[0]["n"]
    empty = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    assert empty.select("SELECT count(*) AS n FROM delivery_status") == [{"n": 0}]
    assert empty.select("SELECT view_name FROM duckdb_views() WHERE NOT internal") == []
    with pytest.raises(EnvironmentFault, match="more than"):
        TableSnapshot(paths, patience_s=0.05).select("SELECT sum(range) FROM range(1_000_000_000_000)")
    assert empty.select("SELECT count(*) AS n FROM acks") == [{"n": 0}]


def test_a_query_that_needs_too_much_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MEMORY_LIMIT", "20MB")
    monkeypatch.setattr(snapshot, "_idle", deque())
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    for answer in (lake.select, lake.ask):
        with pytest.raises(EnvironmentFault, match="needs more than 20MB of memory"):
            answer("SELECT list(range) FROM range(10_000_000)")


def test_sums_of_whole_numbers_are_integers_as_long_as_64_bits_hold_them(tmp_path: Path) -> None:
    snapshot = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    sql = "SELECT sum(n) AS small, sum(n * 3000000000000000000) AS large FROM (SELECT unnest([1, 2, 3]) AS n)"
    for tables in (snapshot, TableWindow(snapshot)):
        (row,) = tables.select(sql)
        assert row == {"small": 6, "large": 18_000_000_000_000_000_000}
        assert isinstance(row["small"], int)


def test_tab_completes_tables_columns_and_keywords() -> None:
    def matches(word: str) -> list[str]:
        found = iter(lambda: complete(word, len(names)), None)
        names: list[str] = []
        for name in found:
            names.append(name)
        return names

    assert matches("delivery_s") == ["delivery_seq", "delivery_status"]
    assert matches("mess") == ["message_hash", "message_key", "message_logs", "messages"]
    assert matches("SEL") == ["SELECT"]
    assert matches("sel") == ["select"]
    assert matches("\x1b") == []


def test_a_hostile_string_is_shown_as_text(capsys: pytest.CaptureFixture[str], sample_tables: Path) -> None:
    status, out, _ = ask(capsys, sample_tables, "SELECT chr(27) || '[2J[red]x' AS c")
    assert status == 0
    assert "\x1b" not in out
    assert "[red]x" in out


def test_csv_runs_nothing_in_a_spreadsheet_or_terminal(capsys: pytest.CaptureFixture[str], sample_tables: Path) -> None:
    question = "SELECT chr(27) || '[2J' AS a, '=1+1' AS b, ['@SUM(1)'] AS c, -1.5::DOUBLE AS d, -2 AS e, '-3' AS \"=f\""
    status, out, _ = ask(capsys, sample_tables, question, "--format", "csv")
    assert status == 0
    assert "\x1b" not in out
    head, row = csv.reader(io.StringIO(out))
    assert head == ["a", "b", "c", "d", "e", "'=f"]
    assert row == [" [2J", "'=1+1", '["@SUM(1)"]', "-1.5", "-2", "'-3"]


def test_the_prompt_goes_on_after_a_fault(
    capsys: pytest.CaptureFixture[str], sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "SELECT channel_id::INT FROM sds_messages WHERE contains(channel_id, chr(27));"
    monkeypatch.setattr(
        "sys.stdin", io.StringIO(f"\\d acks\nSELEC;\n{hostile}\nSELECT 40 +\n2 AS answer;\nSELECT 7 AS last")
    )
    prompt(TableSnapshot(PathSettings(data_dir=str(sample_tables))), "csv")
    out, err = capsys.readouterr()
    assert "acknowledged_by" in out
    assert "answer\n42" in out
    assert out.endswith("last\n7\n")
    assert "This is not valid SQL" in err
    assert "\\x1b[2J" in err and "\x1b" not in err


ENDLESS = "SELECT count(*) FROM range(10000000000) a, range(1000) b"
PATIENCE_S = 90.0
"""When a query ends that a signal did not end: only a failure reaches it."""


@contextmanager
def interrupted_while_querying(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> Iterator[None]:
    """Send this process a signal when DuckDB has begun a query. Ctrl-C raises, whatever ran here before."""
    began = threading.Event()

    def interrupt() -> None:
        began.wait(WAIT_S)
        time.sleep(0.2)  # DuckDB does not tell that it runs
        os.kill(os.getpid(), number)

    real = threading.Timer

    def timer(*arguments: Any) -> threading.Timer:
        began.set()
        return real(*arguments)

    monkeypatch.setattr(threading, "Timer", timer)
    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        yield
    finally:
        began.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_a_long_query(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, raised: type[BaseException]
) -> None:
    def terminate(*_: object) -> NoReturn:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, terminate)
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)), patience_s=PATIENCE_S)
    try:
        with interrupted_while_querying(monkeypatch, number), pytest.raises(raised):
            lake.ask(ENDLESS)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert lake.ask("SELECT 7 AS last").to_pylist() == [{"last": 7}]


def test_ctrl_c_gives_up_the_query_and_not_the_prompt(
    capsys: pytest.CaptureFixture[str], sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{ENDLESS};\nSELECT 7 AS last;\n"))
    with interrupted_while_querying(monkeypatch, signal.SIGINT):
        prompt(TableSnapshot(PathSettings(data_dir=str(sample_tables)), patience_s=PATIENCE_S), "csv")
    out, err = capsys.readouterr()
    assert out == "last\n7\n"
    assert err == "Stopped.\n"


def test_a_double_has_no_exponent_below_a_quadrillion() -> None:
    from reliable_channel.cli.commands.sql import cell

    assert [cell(value) for value in (12.5, 99_999.9, 999_999.9)] == ["12.5", "99999.9", "1000000"]


def test_a_map_is_an_object() -> None:
    from reliable_channel.cli.commands.sql import cell, plain

    at = dt.datetime(2026, 1, 1, 0, 0, 33, 665_000, tzinfo=dt.UTC)
    assert plain([("bob", at), ("carol", None)]) == {"bob": "2026-01-01 00:00:33.665Z", "carol": None}
    assert cell([("bob", at)]) == '{"bob": "2026-01-01 00:00:33.665Z"}'

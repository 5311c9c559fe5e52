"""``run --once`` ends with one line that says what the tables hold."""

from __future__ import annotations

from pathlib import Path

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.cli.commands.run import result
from reliable_channel.config import PathSettings, load


def test_the_line_counts_what_the_tables_hold(sample_tables: Path) -> None:
    settings = load("local", paths={"data_dir": str(sample_tables)})
    (found,) = TableSnapshot(PathSettings(data_dir=str(sample_tables))).select(
        "SELECT count(*) AS delivered, (SELECT count(*) FROM delivery_status WHERE verdict = 'missing') AS missing"
        " FROM delivered_messages"
    )
    line = result(settings)
    assert line.startswith("Done: ")
    assert f"{found['delivered']:,} messages delivered, {found['missing']:,} missing (" in line
    assert "\n" not in line


def test_without_verdicts_it_says_that_nothing_was_judged(tmp_path: Path) -> None:
    settings = load("local", paths={"data_dir": str(tmp_path)})
    assert "0 records, 0 messages delivered, not judged (--verdicts)" in result(settings)

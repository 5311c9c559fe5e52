"""The write-ahead log of a SQLite file is small again after a large transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.transport import sqlite


def test_a_large_transaction_leaves_no_large_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOG_BYTES", 100_000)
    connection = sqlite.connect(tmp_path / "channel.db", timeout_s=1.0)
    sqlite.write_ahead(connection)
    connection.execute("CREATE TABLE segment (data BLOB)")
    log = tmp_path / "channel.db-wal"
    connection.execute("INSERT INTO segment VALUES (randomblob(8000000))")
    assert log.stat().st_size > 8_000_000
    connection.execute("INSERT INTO segment VALUES (x'00')")
    assert log.stat().st_size <= 100_000
    connection.close()

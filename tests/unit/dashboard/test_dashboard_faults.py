"""The dashboard over tables that are absent or damaged, and with a fault of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.lake.read import rows_of
from tests.support.dashboard_client import HtmlPage, key_of, over


def torn_log(place: Path) -> None:
    last = sorted((place / "_delta_log").glob("*.json"))[-1]
    last.write_text(last.read_text(encoding="utf-8")[:-40], encoding="utf-8")


def files_gone(place: Path) -> None:
    for file in place.glob("*.parquet"):
        file.unlink()


def files_torn(place: Path) -> None:
    for file in place.glob("*.parquet"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_columns(place: Path) -> None:
    shutil.rmtree(place)
    write_deltalake(str(place), pa.table({"something": ["else"]}))


@pytest.mark.parametrize("damage", [torn_log, files_gone, files_torn, other_columns])
def test_a_damaged_table_is_said_in_its_part_and_the_rest_is_shown(
    damage: Callable[[Path], None], sample_tables: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    damage(place / "alerts" if damage is other_columns else place / "pipeline_metrics")
    answer = over(place).get("/?last=all")
    assert answer.status_code == 200
    assert "This part cannot be read." in answer.text and "Traceback" not in answer.text
    assert "settled" in answer.text and 'src="/charts/verdicts.svg' in answer.text
    HtmlPage(answer.text)


def test_a_damaged_clock_is_a_page_that_says_so(sample_tables: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    torn_log(place / "clock")
    answer = over(place).get("/")
    assert answer.status_code == 503
    assert "clock cannot be read" in answer.text and "rebuild" in answer.text
    assert "etag" not in answer.headers


def test_without_tables_the_first_page_teaches(tmp_path: Path) -> None:
    client = over(tmp_path / "none")
    for address in ("/", "/channels", "/quarantine"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "reliable-channel run --once --verdicts" in answer.text
        assert "etag" in answer.headers, "it looks again by itself"


def test_a_table_that_no_job_has_written_yet_is_named_with_its_job(sample_tables: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    for name in ("delivery_status", "alerts", "pipeline_metrics"):
        shutil.rmtree(place / name)
    client = over(place)
    text = client.get("/?last=all").text
    assert "There is no table <code>delivery_status</code> yet" in text
    assert "<code>reliable-channel alerts check</code>" in text
    HtmlPage(text)
    # Without verdicts there are channels and messages all the same.
    assert "files" in client.get("/channels?last=all").text
    segments = rows_of(DeltaTable(str(place / "sds_messages")))
    one = next(s for s in segments if s["channel_id"] == "files")
    page = client.get("/message?" + urlencode({**key_of("files"), "key": one["sds_id"]}))
    assert page.status_code == 200 and "not judged" in page.text


def test_a_fault_of_ours_shows_no_trace(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("reliable_channel.analysis.dashboard.channels.page", fault)
    answer = over(sample_tables).get("/channels")
    assert answer.status_code == 500
    assert "secret detail" not in answer.text and "Traceback" not in answer.text
    assert "secret detail" in caplog.text

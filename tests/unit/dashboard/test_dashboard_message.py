"""The page of one message: its segments, where it was seen, what stores answered, and how old that is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from starlette.testclient import TestClient

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.lake.read import rows_of
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import BY_NAME
from tests.support.dashboard_client import key_of, over


def test_a_sighting_that_is_added_later_is_on_the_page_of_its_message(sample_tables: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    client = over(place)
    segments = rows_of(DeltaTable(str(place / "sds_messages")))
    one = next(row for row in segments if row["channel_id"] == "talk")
    address = "/message?" + urlencode({**key_of("talk"), "key": one["sds_id"]})
    first = client.get(address)
    row = {"message_hash": one["envelope_hash"], "vantage": "later", "source": "relay", "seen_at": one["event_time"]}
    sighting = pa.Table.from_pylist([row], schema=arrow_schema(BY_NAME["sightings"]))
    write_deltalake(str(place / "sightings"), sighting, mode="append")
    second = client.get(address, headers={"If-None-Match": first.headers["etag"]})
    assert second.status_code == 200 and "<bdi>later</bdi>" in second.text


def test_the_page_of_a_message_tells_its_segments_and_who_acknowledged_it(
    client: TestClient, sample_tables: Path
) -> None:
    status = rows_of(DeltaTable(str(sample_tables / "delivery_status")))
    one = next(s for s in status if s["channel_id"] == "files" and s["cause"] == "segment_missing")
    text = client.get("/message?" + urlencode({**key_of("files"), "key": one["message_key"]})).text
    assert text.count("did not arrive</span>") == len(one["data_missing"])
    assert f"<dd>index {', '.join(map(str, one['data_missing']))} (the first is 0)</dd>" in text
    repaired = rows_of(DeltaTable(str(sample_tables / "deliveries")))
    rebuilt = next(d for d in repaired if d["repaired_by"] == "parity")
    page = client.get("/message?" + urlencode({**key_of("files"), "key": rebuilt["sds_id"]})).text
    assert "rebuilt by parity" in page


def test_the_page_of_a_message_says_where_it_was_seen_and_where_not(client: TestClient, sample_tables: Path) -> None:
    sightings = rows_of(DeltaTable(str(sample_tables / "sightings")))
    missed = next(row["message_hash"] for row in sightings if row["source"] == "store")
    segments = rows_of(DeltaTable(str(sample_tables / "sds_messages")))
    sds_id = next(row["sds_id"] for row in segments if row["envelope_hash"] == missed)
    text = client.get("/message?" + urlencode({**key_of("talk"), "key": sds_id})).text
    table = text.split('id="places-table"')[1].split("</table>")[0]
    rows = re.findall(r"<bdi>(\w+)</bdi>.*?(\d+)</td>.*?(\d+)</td>.*?(\d+)</td>", table)
    assert rows == [("north", "1", "0", "0"), ("south", "0", "1", "1")]
    picture = client.get("/charts/message/timeline.svg?" + urlencode({**key_of("talk"), "key": sds_id})).text
    assert "vantage" in picture


def test_the_page_of_a_message_says_which_logs_lack_it(client: TestClient, sample_tables: Path) -> None:
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    rows = lake.select(
        """SELECT message_key, sum(logged) AS logged, count(*) FILTER (logged = 0) AS lacking FROM message_logs
           WHERE channel_id = 'talk' GROUP BY message_key"""
    )
    for lacking, logged in ((3, 0), (1, 2)):
        (key,) = [row["message_key"] for row in rows if (row["lacking"], row["logged"]) == (lacking, logged)]
        text = client.get("/message?" + urlencode({**key_of("talk"), "key": key})).text
        table = text.split('id="places-table"')[1].split("</table>")[0]
        logs = dict(re.findall(r"<bdi>(\w+)</bdi></th><td>its log</td><td class=\"number\">(\d)</td>", table))
        assert logs.keys() == {"amber", "birch", "cedar"}
        assert sorted(logs.values()) == sorted(["0"] * lacking + ["1"] * (3 - lacking))
        assert ("Sent, but seen by no log: 3 logs cover" in text) == (logged == 0)


def test_the_page_of_a_message_says_how_old_the_data_is(client: TestClient, sample_tables: Path) -> None:
    one = rows_of(DeltaTable(str(sample_tables / "delivery_status")))[0]
    key = {name: one[name] for name in ("pubsub_topic", "content_topic", "channel_id")}
    assert 'data-newest="' in client.get("/message?" + urlencode({**key, "key": one["message_key"]})).text


def test_what_stores_answered_about_a_message_without_a_hash_is_shown(sample_tables: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    requests = rows_of(DeltaTable(str(place / "refetch_requests")))
    one = next(row for row in requests if row["channel_id"] == "talk" and row["retrieval_hint"] is None)
    row = {name: one[name] for name in ("pubsub_topic", "content_topic", "channel_id", "sds_id", "attempt")}
    row |= {"node": "http://ranged", "outcome": "absent", "purpose": "range", "asked_at": one["event_time"]}
    answers = pa.Table.from_pylist([row], schema=arrow_schema(BY_NAME["store_presence"]))
    write_deltalake(str(place / "store_presence"), answers, mode="append")
    text = over(place).get("/channel?" + urlencode({**key_of("talk"), "last": "all"})).text
    assert "http://ranged" in text.split('id="refetch-table"')[1].split("</table>")[0]
    assert "topic and time" in text.split('id="missing-table"')[1].split("</table>")[0]

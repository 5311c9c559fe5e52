"""A round writes only the files anew that hold verdicts that changed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import DELIVERY_STATUS
from reliable_channel.pipeline.lookup import Lookup
from reliable_channel.pipeline.verdict import replace
from reliable_channel.pipeline.verdict.replace import replace_verdicts

AT = 1_767_225_600_000_000
SINCE = dt.datetime.fromtimestamp(AT / 1_000_000, dt.UTC)
CHANNEL = {"pubsub_topic": None, "content_topic": "/a/1/b/proto", "channel_id": "c"}


def row(key: str, verdict: str = "missing", seconds: float = 1, **more: Any) -> dict[str, Any]:
    return {
        **CHANNEL,
        "message_key": key,
        "verdict": verdict,
        "first_seen": AT + int(seconds * 1_000_000),
        "settled": True,
        "as_of": AT,
        "sds_ids": [f"id of {key}"],
    } | more


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (DELIVERY_STATUS,))
    return paths


def append(paths: PathSettings, *rows: dict[str, Any]) -> None:
    append_rows(paths, DELIVERY_STATUS, as_arrow(rows, DELIVERY_STATUS))


def put(paths: PathSettings, before: list[dict[str, Any]], judged: list[dict[str, Any]]) -> set[str]:
    """The files that were there before and are gone."""
    to = open_table(paths, DELIVERY_STATUS)
    files = set(to.file_uris())
    old, new = (as_arrow(rows, DELIVERY_STATUS) for rows in (before, judged))
    replace_verdicts(
        paths, to, Lookup(paths, DELIVERY_STATUS, data_files(to)), old, new, SINCE, {"userMetadata": "here"}
    )
    now = open_table(paths, DELIVERY_STATUS)
    assert now.history(1)[0]["userMetadata"] == "here"
    return files - set(now.file_uris())


def verdicts(paths: PathSettings) -> dict[tuple[str, str], str]:
    found = rows_of(open_table(paths, DELIVERY_STATUS), ["channel_id", "message_key", "verdict"])
    assert len({(each["channel_id"], each["message_key"]) for each in found}) == len(found)
    return {(each["channel_id"], each["message_key"]): each["verdict"] for each in found}


def test_only_files_with_verdicts_that_changed_are_written_anew(paths: PathSettings) -> None:
    append(paths, row("old"), row("same"))
    append(paths, row("changes"), row("changes", channel_id="another"), row("stays beside it"))
    gone = put(paths, [row("changes"), row("same")], [row("changes", "delivered"), row("same", as_of=AT + 9)])
    assert len(gone) == 1
    assert verdicts(paths) == {
        ("c", "old"): "missing",
        ("c", "same"): "missing",
        ("c", "changes"): "delivered",
        ("another", "changes"): "missing",
        ("c", "stays beside it"): "missing",
    }


def test_new_verdicts_touch_no_file(paths: PathSettings) -> None:
    append(paths, row("old"))
    assert put(paths, [], [row("new")]) == set()
    assert verdicts(paths) == {("c", "old"): "missing", ("c", "new"): "missing"}


def test_a_verdict_that_nobody_thought_of_is_replaced_as_well(paths: PathSettings) -> None:
    append(paths, row("forgotten"))
    put(paths, [], [row("forgotten", "delivered")])
    assert verdicts(paths) == {("c", "forgotten"): "delivered"}


def test_what_is_not_settled_gets_the_new_time(paths: PathSettings) -> None:
    append(paths, row("open", settled=False))
    assert len(put(paths, [row("open", settled=False)], [row("open", settled=False, as_of=AT + 7)])) == 1
    (found,) = rows_of(open_table(paths, DELIVERY_STATUS))
    assert found["as_of"] == SINCE + dt.timedelta(microseconds=7)


def test_what_was_taken_up_is_deleted_but_not_what_is_delivered_or_too_old(paths: PathSettings) -> None:
    before = [row("taken up"), row("came", "delivered"), row("too old", seconds=-1)]
    append(paths, *before)
    put(paths, before, [])
    assert verdicts(paths) == {("c", "came"): "delivered", ("c", "too old"): "missing"}


def test_rows_are_in_the_order_of_time(paths: PathSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replace, "ROWS_OF_A_FILE", 2)
    before = [row(f"{number}", seconds=number) for number in (3, 1, 0)]
    append(paths, *before)
    put(paths, before, [row(f"{number}", "delivered", seconds=number) for number in (0, 1, 2, 3)])
    files = pa.table(open_table(paths, DELIVERY_STATUS).get_add_actions(flatten=True)).to_pylist()
    spans = sorted((each["min.first_seen"], each["max.first_seen"]) for each in files)
    assert len(spans) == 2
    assert spans[0][1] < spans[1][0]


def test_of_two_rounds_at_a_time_the_second_is_refused(paths: PathSettings) -> None:
    first, second = open_table(paths, DELIVERY_STATUS), open_table(paths, DELIVERY_STATUS)
    judged = as_arrow([row("new")], DELIVERY_STATUS)
    nothing = judged.slice(0, 0)
    replace_verdicts(paths, first, Lookup(paths, DELIVERY_STATUS, data_files(first)), nothing, judged, SINCE, {})
    with pytest.raises(CommitFailedError):
        replace_verdicts(paths, second, Lookup(paths, DELIVERY_STATUS, data_files(second)), nothing, judged, SINCE, {})
    assert verdicts(paths) == {("c", "new"): "missing"}


def test_a_conflict_leaves_no_file_behind(paths: PathSettings) -> None:
    append(paths, row("a"))
    append(paths, row("b"))
    to = open_table(paths, DELIVERY_STATUS)
    look_up = Lookup(paths, DELIVERY_STATUS, data_files(to))
    open_table(paths, DELIVERY_STATUS).optimize.compact()
    on_disk = {*Path(paths.table("delivery_status")).glob("*.parquet")}
    judged = as_arrow([row("a", "delivered")], DELIVERY_STATUS)
    with pytest.raises(CommitFailedError):
        replace_verdicts(paths, to, look_up, as_arrow([row("a")], DELIVERY_STATUS), judged, SINCE, {})
    assert {*Path(paths.table("delivery_status")).glob("*.parquet")} == on_disk

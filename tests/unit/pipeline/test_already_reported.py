"""What expires and holds nothing new is not reported again, however late its segments came."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.lake.create import create_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import INCOMPLETE_MESSAGES, REASSEMBLED_MESSAGES, SDS_MESSAGES, Table
from reliable_channel.pipeline.reassembly import already_reported
from reliable_channel.pipeline.reassembly.already_reported import drop_already_reported, drop_covered, list_arrivals
from tests.support.bad_rows import bad_rows
from tests.support.examples import examples

HASH = bytes(range(32))
AT_US = 1_767_225_600_000_000
SCOPE = {"pubsub_topic": "p", "content_topic": "c", "channel_id": "talk", "family": "spec", "sender_id": "alice"}


STATUSES = st.sampled_from(["given_up", "overdue"])


@pytest.fixture
def paths(tmp_path: Any) -> PathSettings:
    return tables_in(str(tmp_path))


def tables_in(place: str) -> PathSettings:
    paths = PathSettings(run_dir=place)
    for table in (REASSEMBLED_MESSAGES, INCOMPLETE_MESSAGES, SDS_MESSAGES):
        create_table(paths.table(table.name), table)
    return paths


def store(paths: PathSettings, table: Table, *rows: Mapping[str, Any]) -> None:
    write_deltalake(paths.table(table.name), as_arrow(rows, table), mode="append")


def given_up(
    after_s: int,
    *ids: str,
    sender: str = "alice",
    status: str = "given_up",
) -> dict[str, Any]:
    """A set that was given up ``after_s`` after the first, and began half an hour before."""
    at = AT_US + after_s * 1_000_000
    row = {**SCOPE, "sender_id": sender, "entire_message_hash": HASH, "event_time": at}
    return {**row, "first_seen": at - 1_800_000_000, "status": status, "sds_ids": [*ids]}


def drop_reported(paths: PathSettings, *rows: Mapping[str, Any]) -> list[list[str]]:
    return [row["sds_ids"] for row in drop_already_reported(rows, paths)]


def overdue(after_s: int, *ids: str) -> dict[str, Any]:
    return given_up(after_s, *ids, status="overdue")


def test_a_set_is_reported_each_time_it_is_overdue_and_then_given_up_once(paths: PathSettings) -> None:
    """Each row is another request for its segments; later copies of them are not."""
    rows = [overdue(0, "a"), overdue(600, "a"), overdue(1200, "a", "b"), given_up(3600, "a", "b"), overdue(9000, "b")]
    assert drop_reported(paths, *rows) == [["a"], ["a"], ["a", "b"], ["a", "b"]]
    store(paths, INCOMPLETE_MESSAGES, *rows[:4])
    assert drop_reported(paths, *rows) == [["a"], ["a"], ["a", "b"], ["a", "b"]], "a replay reports the same"
    assert drop_reported(paths, rows[4]) == []


def test_a_set_that_was_overdue_before_it_was_rebuilt_is_reported(paths: PathSettings) -> None:
    """In one micro-batch the rebuilt message is written first; the cut decides nothing."""
    message = {**SCOPE, "entire_message_hash": HASH, "sds_ids": ["a", "b"], "event_time": AT_US + 600_000_000}
    message |= {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0, "first_lamport_timestamp": AT_US // 1000}
    store(paths, REASSEMBLED_MESSAGES, message)
    assert drop_reported(paths, overdue(300, "a"), overdue(900, "b")) == [["a"]]


def test_what_is_given_up_is_reported_once(paths: PathSettings) -> None:
    """A copy of a segment comes when its set has expired, in the same micro-batch or in a later one."""
    rows = [given_up(0, "a", "b"), given_up(600, "b"), given_up(1200, "b", "c")]
    assert drop_reported(paths, *rows) == [["a", "b"], ["b", "c"]]
    assert drop_reported(paths, *reversed(rows)) == [["b", "c"], ["a", "b"]], (
        "times decide, not the order of the results"
    )
    store(paths, INCOMPLETE_MESSAGES, rows[0])
    assert drop_reported(paths, *rows[1:]) == [["b", "c"]]
    assert drop_reported(paths, given_up(600, "b", sender="bob")) == [["b"]], "another sender's set is another set"


def test_a_replay_reports_what_it_reported(paths: PathSettings) -> None:
    rows = [given_up(0, "a", "b"), given_up(600, "b", "c")]
    first = drop_reported(paths, *rows)
    store(paths, INCOMPLETE_MESSAGES, *rows)
    assert drop_reported(paths, *rows) == first == [["a", "b"], ["b", "c"]]


@pytest.mark.parametrize("lamport", [AT_US // 1000 + 3, 1, None], ids=["known", "long before", "unknown"])
def test_late_segments_of_a_rebuilt_message_are_not_incomplete(paths: PathSettings, lamport: int | None) -> None:
    message = {**SCOPE, "entire_message_hash": HASH, "sds_ids": ["a", "b", None], "event_time": AT_US}
    message |= {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0, "first_lamport_timestamp": lamport}
    store(paths, REASSEMBLED_MESSAGES, message)
    day_later = 24 * 3600
    assert drop_reported(paths, given_up(day_later, "b"), given_up(day_later, "b", "d")) == [["b", "d"]]


def came(after_s: int, sds_id: str) -> dict[str, Any]:
    """A segment as a row of ``sds_messages``."""
    row = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0, "event_time": AT_US + after_s * 1_000_000}
    return {**row, **SCOPE, "entire_message_hash": HASH, "sds_id": sds_id}


def test_a_replay_of_parity_that_came_when_its_message_was_rebuilt_is_not_incomplete(paths: PathSettings) -> None:
    """Such parity is in no row, and a store may return it without what completes it, days later."""
    message = {**SCOPE, "entire_message_hash": HASH, "sds_ids": ["a", "b"], "event_time": AT_US}
    message |= {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0, "first_lamport_timestamp": 1}
    store(paths, REASSEMBLED_MESSAGES, message)
    later = 10 * 24 * 3600
    store(paths, SDS_MESSAGES, came(60, "parity"), came(later - 1_800, "parity"), came(later - 1_800, "new"))
    assert drop_reported(paths, overdue(later, "b", "parity"), given_up(later + 60, "b", "parity")) == []
    assert drop_reported(paths, given_up(later, "parity")) == []
    assert drop_reported(paths, given_up(later, "b", "new")) == [["b", "new"]], "a new send of the payload may have it"
    assert drop_reported(paths, given_up(later, "b", "parity", sender="bob")) == [["b", "parity"]]
    store(paths, INCOMPLETE_MESSAGES, given_up(3_600, "parity"))
    assert drop_reported(paths, given_up(later, "b", "parity")) == [["b", "parity"]], (
        "it was of a send that was given up"
    )


def test_rows_of_a_foreign_writer_about_the_same_message_change_nothing(paths: PathSettings) -> None:
    for table in (REASSEMBLED_MESSAGES, INCOMPLETE_MESSAGES, SDS_MESSAGES):
        store(paths, table, *(row | {**SCOPE, "entire_message_hash": HASH} for row in bad_rows(table, beyond=True)))
    assert drop_reported(paths, given_up(0, "a", "b")) == [["a", "b"]]


def rebuilt(after_s: int, *ids: str) -> dict[str, Any]:
    """A message that was rebuilt ``after_s`` after the first."""
    row = {**SCOPE, "entire_message_hash": HASH, "sds_ids": [*ids], "event_time": AT_US + after_s * 1_000_000}
    return row | {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0, "first_lamport_timestamp": 1}


def test_however_often_a_payload_was_completed_a_report_makes_few_objects(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can complete one in any number. All of its rows of thirty days were made objects in the driver, at every
    report."""
    store(paths, REASSEMBLED_MESSAGES, *(rebuilt(number, f"m{number}") for number in range(200)))
    store(paths, REASSEMBLED_MESSAGES, *(rebuilt(number, "a") for number in range(200)))
    store(paths, INCOMPLETE_MESSAGES, *(given_up(number, "b", f"m{number}") for number in range(200)))
    store(paths, SDS_MESSAGES, *(came(number, "c") for number in range(200)))
    compared: list[int] = []

    def count_rows(reported: Any, rows: Any, *more: Any) -> Any:
        compared.extend(map(len, (rows, *more)))
        return drop_covered(reported, rows, *more)

    monkeypatch.setattr(already_reported, "drop_covered", count_rows)
    assert drop_reported(paths, given_up(9_000, "a", "b", "c"), given_up(9_000, "b")) == [["a", "b", "c"]]
    assert compared == [3, 3, 1]


ids = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
times = st.integers(0, 4).map(lambda step: step * 1_800)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.builds(lambda at, some: rebuilt(at, *some), times, ids), max_size=4),
    st.lists(st.builds(lambda at, some, how: given_up(at, *some, status=how), times, ids, STATUSES), max_size=4),
    st.lists(st.builds(came, times, st.sampled_from("abcd")), max_size=4),
    st.lists(st.builds(lambda at, some, how: given_up(at, *some, status=how), times, ids, STATUSES), max_size=4),
)
def test_what_is_read_of_the_tables_decides_as_all_of_them_would(
    whole: list[dict[str, Any]], ended: list[dict[str, Any]], segments: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    with TemporaryDirectory() as place:
        paths = tables_in(place)
        for table, some in ((REASSEMBLED_MESSAGES, whole), (INCOMPLETE_MESSAGES, ended), (SDS_MESSAGES, segments)):
            if some:
                store(paths, table, *some)
        before = [row for row in ended if row["status"] != "overdue"]
        expected = drop_covered(rows, (*whole, *before), list_arrivals(segments))
        assert drop_already_reported(rows, paths) == expected

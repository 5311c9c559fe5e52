"""Which SDS ids stand in a record that could not be decoded: evidence for the verdict *undecodable*."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.core.wire._pb import sds_pb2
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import QUARANTINE
from reliable_channel.pipeline.lookup import INDEXED, MOST_TAGS, SDS_ID_TAG, SEARCHED_BYTES, read_evidence, values_in
from reliable_channel.pipeline.verdict.touched import COLUMNS, read_touched
from reliable_channel.pipeline.verdict.verdicts import _add_suspected


def found_in(*records: bytes) -> set[str]:
    batch = pa.record_batch({"raw": pa.array(records, pa.binary())})
    return {name for found in _add_suspected(iter([batch])) for name in found["sds_id"].to_pylist()}


FEW_TAGS = st.binary(max_size=40).filter(lambda some: some.count(SDS_ID_TAG) <= 6)


@given(st.text(min_size=1, max_size=31), st.text(max_size=8), FEW_TAGS, st.binary(max_size=40))
def test_the_id_of_a_garbled_message_is_found(sds_id: str, sender: str, before: bytes, after: bytes) -> None:
    message = sds_pb2.SpecMessage(sender_id=sender, message_id=sds_id, channel_id="talk").SerializeToString()
    assert sds_id in found_in(before + message + after)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_give_text_that_stands_in_them(records: list[bytes]) -> None:
    for name in found_in(*records):
        assert 0 < len(name.encode()) < 128
        assert any(name.encode() in record for record in records)


def test_what_is_cut_off_is_not_made_up() -> None:
    assert found_in(b"\x12\x05abc", b"\x12", b"", b"\x12\x00", b"\x12\x02\xff\xff") == set()


def hostile(size: int, seed: int) -> bytes:
    """A record in which every second byte begins something that looks like an id of its own."""
    numbers = random.Random(seed)
    return b"".join(bytes((0x12, numbers.randrange(40, 128))) for _ in range(size // 2))


def test_a_stranger_s_records_hold_few_ids_and_little_of_them_is_read(tmp_path: Path) -> None:
    """A few hundred of them had as many ids as fit in no memory, and the verdict job died of them again and again."""
    paths = PathSettings(run_dir=str(tmp_path))
    message = sds_pb2.SpecMessage(sender_id="x" * 4_096, message_id="genuine")
    create_tables(paths, (*COLUMNS,))
    records = [*(hostile(65_536, seed) for seed in range(20)), message.SerializeToString()]
    here = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "event_time": 0,
        "ingest_time": 0,
        "raw_bytes": 0,
        "raw_digest": b"",
    }
    rows = [
        {**here, "kafka_offset": number, "stage": "sds", "reason": "malformed", "raw": raw}
        for number, raw in enumerate(records)
    ]
    append_rows(paths, QUARANTINE, as_arrow(rows, QUARANTINE))
    touched = read_touched(paths, {table: open_table(paths, table) for table in COLUMNS}, None)
    assert touched is not None
    assert "genuine" in touched.texts
    assert len(touched.texts) <= MOST_TAGS * len(records)
    # delta-rs writes the texts and bytes of rows that somebody updates as views, which Arrow neither compares nor cuts.
    open_table(paths, QUARANTINE).update({"detail": "'looked at'"})
    files = [*data_files(open_table(paths, QUARANTINE))]
    read = read_evidence(paths, QUARANTINE, files, INDEXED[QUARANTINE])
    assert pc.max(pc.binary_length(read["raw"])).as_py() == SEARCHED_BYTES
    assert len(values_in(read, QUARANTINE)) <= (MOST_TAGS + 1) * len(records)
    some = read_evidence(paths, QUARANTINE, files, ("stage", "raw"), pc.field("stage") == "envelope")
    assert some.num_rows == 0

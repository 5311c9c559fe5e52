"""Which SDS ids stand in a record that could not be decoded: evidence for the verdict *undecodable*."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire._pb import sds_pb2
from reliable_channel.pipeline.verdict.verdicts import _add_suspected


def found_in(*records: bytes) -> set[str]:
    batch = pa.record_batch({"raw": pa.array(records, pa.binary())})
    return {name for found in _add_suspected(iter([batch])) for name in found["sds_id"].to_pylist()}


@given(st.text(min_size=1, max_size=31), st.text(max_size=8), st.binary(max_size=40), st.binary(max_size=40))
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

"""``repaired_segments`` is the number of data segments that were rebuilt, whatever scheme their SDS ids follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.hashing import js_message_id, sds_message_id, sha256
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.pipeline.ack.output_rows import Delivery
from tests.support.adapters import Adapters

T0 = 1_767_225_600_000
HEADERS = {"pubsub_topic": b"/waku/2/rs/1/0", "source": b"relay"}
CONTENTS = contents_for(
    bytes(range(250)), SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)
)


@pytest.mark.parametrize(
    "make_id",
    [
        pytest.param(lambda content: sds_message_id("alice", T0, content), id="this project"),
        pytest.param(js_message_id, id="js-waku"),
        pytest.param(lambda content: sha256(b"of a scheme that nobody knows" + content).hex(), id="nim-sds"),
    ],
)
@pytest.mark.parametrize(("order", "repaired"), [([0, 1, 2, 3, 4, 5], 0), ([5, 0, 4, 3, 1], 2), ([0, 4, 2, 3], 1)])
def test_it_counts_the_data_segments_that_had_not_arrived(
    order: list[int], repaired: int, make_id: Callable[[bytes], str]
) -> None:
    adapters = Adapters()
    for offset, number in enumerate(order):
        content = CONTENTS[number]
        message = SdsMessage("alice", make_id(content), "talk", T0 + number, content=content)
        waku = WakuMessage(encode_sds_message(message), "/reliable-channel/1/chat/proto", timestamp=T0 * 10**6 + number)
        adapters.record(offset, encode_waku_message(waku), HEADERS, T0 + 100 + offset)
    adapters.close(T0 + 3_600_000)
    (whole,) = adapters.rebuilt
    (message_row,) = [row for row in adapters.rows if isinstance(row, Delivery) and row.row_kind == "message"]
    assert (message_row.repaired_segments, len(whole.repaired)) == (repaired, repaired)

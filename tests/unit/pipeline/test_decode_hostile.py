"""What decoding costs, in memory and time, whoever wrote the records."""

from __future__ import annotations

import time

import pytest

from reliable_channel.core.wire.hashing import keccak256
from tests.support.decoding import NOW_MS, PUBSUB, decode, decoder, envelope, sds, segment

SIZE = 149_000


def hostile(prefix: bytes, unit: bytes) -> bytes:
    return prefix + unit * (SIZE // len(unit))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(hostile(sds(), b"\x5a\x00"), id="empty history entries"),
        pytest.param(hostile(sds(), b"\x6a\x00"), id="empty repair requests"),
        pytest.param(hostile(sds(), b"\xf8\x07\x01"), id="unknown numbers"),
        pytest.param(hostile(sds(), b"\xfb\x07\xfc\x07"), id="unknown groups"),
        pytest.param(hostile(sds(), b"\xfb\x07"), id="groups without an end"),
        pytest.param(hostile(sds(), b"\xa2\x01\x00"), id="content again and again"),
        pytest.param(sds(content=hostile(segment(), b"\x22\x00")), id="segment payload again and again"),
        pytest.param(sds(content=hostile(segment(), b"\xf8\x07\x01")), id="unknown fields in a segment"),
    ],
)
def test_no_envelope_of_150_kilobytes_is_dear_to_decode(payload: bytes):
    """Generously: thirty times its own Keccak-256, where 2 to 4 times were measured."""
    value, waiting = envelope(payload), decoder()

    def cpu(action: object, *arguments: object) -> float:
        times = []
        for _ in range(3):
            start = time.thread_time()
            action(*arguments)  # type: ignore[operator]
            times.append(time.thread_time() - start)
        return min(times)

    assert cpu(waiting.decode, value, PUBSUB, b"relay", NOW_MS * 1000) < 30 * cpu(keccak256, value)


def test_long_names_that_strangers_invent_are_not_kept():
    """4 096 names were kept, each as long as a record: 600 MB."""
    waiting = decoder()
    for number in range(50):
        topic, pubsub = f"/{number}" + "a" * 100_000, f"{number}".encode() + b"p" * 100_000
        row = waiting.decode(envelope(sds(), topic), pubsub, b"relay", NOW_MS * 1000)
        assert (row.kind, row.content_topic, row.pubsub_topic) == ("plain", topic, pubsub.decode())
        waiting.decode(envelope(sds(), f"/{number}"), PUBSUB, b"relay", NOW_MS * 1000)
    kept = [cached.cache_info().currsize for cached in (waiting._find_topic, waiting._decode_text)]
    assert kept == [50, 2], "the short topics, and the usual values of the headers"


def test_a_long_header_that_is_no_text_is_refused():
    assert decode(envelope(sds()), b"\xff" * 1_000).reason == "bad_header"

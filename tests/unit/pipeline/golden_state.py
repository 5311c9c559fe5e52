"""Stored states of the current versions, as files, for ``test_golden_state.py``; and the script that writes them.

A new ``STATE_VERSION`` needs new files: ``.venv/bin/python -m tests.unit.pipeline.golden_state``. The rows stay.
"""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any
from unittest.mock import patch

from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.pipeline.ack import channel_state, stream
from reliable_channel.pipeline.ack.channel_state import Channels, LiveChannels, Rules
from reliable_channel.pipeline.ack.observer import ChannelKey, ChannelObserver
from reliable_channel.pipeline.ack.records import InputRow
from reliable_channel.pipeline.reassembly import sets
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentRow
from tests.support.adapters import SETS, TOPIC, Adapters
from tests.unit.pipeline.buckets import FakeBucket, text_of

FILES = {name: Path(__file__).parents[2] / "vectors" / f"{name}_state.json.gz" for name in ("ack", "reassembly")}
KEY: ChannelKey = ("/waku/2/rs/1/0", "/reliable-channel/1/chat/proto", "talk", "spec")
A_MICRO_BATCH = 20

Given = list[tuple[str, bytes | None]]


def bucket_of(given: Given, rules: Rules) -> FakeBucket:
    """The bucket after these rows, some a micro-batch: snapshots, and a journal after the last of them."""
    bucket, live = FakeBucket(), LiveChannels()
    with patch.multiple(channel_state, MOST_PAGES=3, LEAST_JOURNAL_BYTES=10**6):
        for first in range(0, len(given), A_MICRO_BATCH):
            channels = Channels(bucket, 0, lambda key: rules, "query", live)
            list(stream.process_channel(channels, KEY, given[first : first + A_MICRO_BATCH], {}))
            channels.close()
    return bucket


def state_of(bucket: FakeBucket, rules: Rules) -> bytes:
    """The channel as another worker restores it."""
    return Channels(bucket, 0, lambda key: rules, "query", LiveChannels()).load(KEY).observer.to_bytes()


def unpacked(name: bytes, part: int, value: bytes) -> Any:
    """An entry of a bucket without what depends on the version of zlib, or on the settings that there are."""
    if part < 0 or not value or len(name) != 32:
        return value
    page = pb.JournalPageProto.FromString(value)
    return zlib.decompress(page.rows), list(page.with_filter), list(page.filters)


def sets_of(segments: list[SegmentRow]) -> HashSets:
    """The sets of one hash after these segments."""
    found = HashSets(SETS)
    for segment in segments:
        found.add(segment)
    return found


def ack_file(given: Given, rules: Rules) -> dict[str, Any]:
    """What the file of the ack job holds."""
    bucket = bucket_of(given, rules)
    head = pb.BucketProto.FromString(bucket.stored_head or b"")
    head.tokens[:] = [b"a token."]  # they are random
    return {
        "version": channel_state.STATE_VERSION,
        "settings": rules.stored.decode(),
        "rows": [[text, None if some is None else b64encode(some).decode()] for text, some in given],
        "head": b64encode(head.SerializeToString()).decode(),
        "entries": [[name.hex(), part, b64encode(value).decode()] for (name, part), value in bucket.entries.items()],
        "state": b64encode(state_of(bucket, rules)).decode(),
    }


def reassembly_file(segments: list[SegmentRow]) -> dict[str, Any]:
    """What the file of the reassembly job holds: a set that waits for its last segments."""
    rows = [[b64encode(value).decode() if isinstance(value, bytes) else value for value in row] for row in segments]
    state = b64encode(sets_of(segments).to_bytes()).decode()
    return {"version": sets.STATE_VERSION, "rows": rows, "state": state}


def given_rows(file: dict[str, Any]) -> Given:
    """The rows of the ack job's file."""
    return [(text, None if some is None else b64decode(some)) for text, some in file["rows"]]


def segment_rows(file: dict[str, Any]) -> list[SegmentRow]:
    """The rows of the reassembly job's file."""
    at = SegmentRow._fields.index("content")
    return [SegmentRow(*row[:at], b64decode(row[at]), *row[at + 1 :]) for row in file["rows"]]  # type: ignore[call-arg]


def read(name: str) -> dict[str, Any]:
    """A stored file: ``ack`` or ``reassembly``."""
    found: dict[str, Any] = json.loads(gzip.decompress(FILES[name].read_bytes()))
    return found


def write(name: str, content: dict[str, Any]) -> None:
    """Store a file."""
    FILES[name].write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def simulated(rules: Rules) -> tuple[Given, list[SegmentRow]]:
    """Rows of one channel with losses, copies, forgeries, parity, ephemeral messages and ticks; and the segments of one
    message without the last."""
    from reliable_channel.simulation.world import simulate
    from tests.support.integrity import attack_scenario

    given: Given = []
    segments: dict[Any, list[SegmentRow]] = {}

    class Recording(Adapters):
        def _take(self, observer: ChannelObserver, row: InputRow) -> None:
            # A filter is 18 KB; some are enough.
            given.append((text_of(row), row.bloom_filter if len(given) % 12 == 0 else None))
            super()._take(observer, row)

    world = simulate(attack_scenario(5, per_envelope=0.2, loss=0.1, messages=16))
    recording, add = Recording(sds=rules.sds), HashSets.add

    def noted(self: HashSets, row: SegmentRow) -> Any:
        segments.setdefault(id(self), []).append(row)
        return add(self, row)

    with patch.object(HashSets, "add", noted):
        for offset, record in enumerate(world.records):
            if record.value is not None:
                recording.record(offset, record.value, dict(record.headers), record.at_ms)
            if offset % 40 == 39:
                recording.tick(offset, record.at_ms)
    most = max(segments.values(), key=lambda rows: len({row.sds_id for row in rows}))
    while not sets_of(most).must_persist:
        most = most[:-1]
    assert most and {row.kafka_topic for row in most} == {TOPIC}
    return given, most


if __name__ == "__main__":
    if all(file.exists() for file in FILES.values()):
        stored = read("ack")
        rules = Rules.restore(stored["settings"].encode())
        rows, waiting = given_rows(stored), segment_rows(read("reassembly"))
    else:
        rules = Rules(None, SdsParameters(timeout_for_lost_messages_ms=30_000), None)
        rows, waiting = simulated(rules)
    write("ack", ack_file(rows, rules))
    write("reassembly", reassembly_file(waiting))

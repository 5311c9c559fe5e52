"""Stored state of the current version stays readable, and a change of what is stored needs a new version.

A program that reads a checkpoint of the same version must come to the same state: journals are taken again under the
rules of now. When a test here fails, raise ``STATE_VERSION`` and write the files anew (``golden_state.py``); the
settings guard then refuses older checkpoints with the remedy.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest

from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.pipeline.ack import channel_state
from reliable_channel.pipeline.ack.channel_state import Rules
from reliable_channel.pipeline.reassembly import sets
from reliable_channel.pipeline.reassembly.sets import HashSets
from tests.support.adapters import SETS
from tests.unit.pipeline.buckets import FakeBucket
from tests.unit.pipeline.golden_state import bucket_of, given_rows, read, segment_rows, sets_of, state_of, unpacked

SETTINGS = -2
"""The number of the entries that hold settings: they are those of now, with their defaults."""

REMEDY = "what is stored changed: raise STATE_VERSION, then run python -m tests.unit.pipeline.golden_state"


@pytest.fixture(scope="module")
def ack() -> dict[str, Any]:
    return read("ack")


@pytest.fixture(scope="module")
def reassembly() -> dict[str, Any]:
    return read("reassembly")


def rules(ack: dict[str, Any]) -> Rules:
    return Rules.restore(ack["settings"].encode())


def stored(ack: dict[str, Any]) -> FakeBucket:
    bucket = FakeBucket()
    bucket.stored_head = b64decode(ack["head"])
    bucket.entries = {(bytes.fromhex(name), part): b64decode(value) for name, part, value in ack["entries"]}
    return bucket


def test_the_files_are_those_of_the_current_versions(ack: dict[str, Any], reassembly: dict[str, Any]) -> None:
    assert (ack["version"], reassembly["version"]) == (channel_state.STATE_VERSION, sets.STATE_VERSION), REMEDY


def test_the_file_has_every_kind_of_row_a_snapshot_and_a_journal(ack: dict[str, Any]) -> None:
    rows = [json.loads(text) for text, _ in given_rows(ack)]
    assert {row["row_kind"] for row in rows} == {"message", "completed", "repaired", "tick"}
    assert {row.get("sds_kind") for row in rows} >= {"content", "sync", "ephemeral"}
    parts = [part for _, part, _ in ack["entries"]]
    assert -1 in parts and -2 in parts and len(parts) > 3


def test_a_stored_channel_is_read_as_it_was(ack: dict[str, Any]) -> None:
    assert state_of(stored(ack), rules(ack)) == b64decode(ack["state"]), REMEDY


def test_the_same_rows_are_stored_in_the_same_way(ack: dict[str, Any]) -> None:
    now, then = bucket_of(given_rows(ack), rules(ack)), stored(ack)
    entries = [
        {key: unpacked(*key, value) for key, value in bucket.entries.items() if key[1] != SETTINGS}
        for bucket in (now, then)
    ]
    assert entries[0] == entries[1], REMEDY
    heads = [pb.BucketProto.FromString(bucket.stored_head or b"") for bucket in (now, then)]
    assert [head.version for head in heads] == [channel_state.STATE_VERSION] * 2, REMEDY
    assert heads[0].due and [*heads[0].due] == [*heads[1].due], REMEDY


def test_stored_sets_are_read_and_stored_as_they_were(reassembly: dict[str, Any]) -> None:
    state = b64decode(reassembly["state"])
    assert HashSets.from_bytes(state, SETS).to_bytes() == state, REMEDY
    assert sets_of(segment_rows(reassembly)).to_bytes() == state, REMEDY

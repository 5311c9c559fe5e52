"""What is exempt from garbage collection is freed all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from reliable_channel.core.sds import SdsParameters
from reliable_channel.pipeline import gc_paused
from reliable_channel.pipeline.ack.observer import ChannelObserver
from reliable_channel.pipeline.ack.records import InputRow
from reliable_channel.pipeline.ack.stream import stateful
from tests.support.ack_rows import NOW, content_row
from tests.support.cuts import channels
from tests.support.examples import examples
from tests.unit.pipeline.buckets import FakeBucket, frame_of


class Thing:
    pass


@pytest.fixture(autouse=True)
def _only_new_objects() -> Iterator[None]:
    """What other tests left is exempt, so that no collection of these tests scans it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_what_nothing_refers_to_any_more_is_freed_at_once() -> None:
    thing = Thing()
    watched = weakref.ref(thing)
    gc_paused.exempt_survivors()
    assert gc.get_freeze_count() > 0
    del thing
    assert watched() is None


def test_cycles_are_found_in_the_end() -> None:
    thing = Thing()
    thing.itself = thing  # type: ignore[attr-defined]
    watched = weakref.ref(thing)
    gc_paused.exempt_survivors()
    del thing
    gc.collect()
    assert watched() is not None
    for _ in range(gc_paused.COLLECT_EVERY):
        gc_paused.exempt_survivors()
    assert watched() is None


@settings(max_examples=examples(10), deadline=None)
@given(channels())
def test_channels_are_freed_without_the_collector(heard: list[InputRow]) -> None:
    observer = ChannelObserver(("p", "c", "talk", "spec"), None, SdsParameters())
    for row in heard:
        observer.take(row)
    watched = weakref.ref(observer)
    gc.collect()
    gc.disable()
    try:
        del observer
        assert watched() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_ack_job_does_not_scan_the_channels_that_it_keeps() -> None:
    """They outlive the micro-batch, and none of their objects is garbage."""
    rows = [content_row(b"%d" % n, sds_id=f"{n}", lamport_timestamp=NOW + n) for n in range(500)]
    frame, update = frame_of(("p", "c", "scanned", "spec"), rows), stateful(None, SdsParameters(), None)
    scans: list[object] = []

    def note(phase: str, info: dict[str, int]) -> None:
        scans.append((phase, info))

    gc.collect()
    gc.callbacks.append(note)
    try:
        assert list(update((0,), iter([frame]), FakeBucket()))
    finally:
        gc.callbacks.remove(note)
    assert scans == []

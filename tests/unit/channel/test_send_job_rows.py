"""The job that sends a table: what it does with odd rows, and when its channel stops. It needs no Spark for that."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel import ReliableChannel
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault, LocalError
from reliable_channel.messaging.pipeline_feed import Feed
from reliable_channel.runtime.participant import OpenParticipant, ParticipantOptions
from tests.unit.channel.channel_world import CHANNEL, World

JOB = Path(__file__).parents[3] / "jobs" / "send.py"


class Source:
    """A table of one row; the channel's disk is full once it was read."""

    columns = ("row_id", "payload")

    def __init__(self, channel: ReliableChannel) -> None:
        self._channel = channel

    def select(self, *_: str) -> Source:
        return self

    def orderBy(self, *_: str) -> Source:  # noqa: N802 - Spark's name
        return self

    def toLocalIterator(self, prefetchPartitions: bool) -> Iterator[dict[str, Any]]:  # noqa: N802, N803 - Spark's names
        yield {"row_id": "row 1", "payload": b"hello"}
        with pytest.raises(EnvironmentFault):
            self._channel._guard(fail)


def fail() -> None:
    raise EnvironmentFault("The channel database cannot be written.")


def test_a_channel_that_stops_ends_the_wait_for_its_rows() -> None:
    """It asked for their states without a pause, and with --until delivered Spark, until the time was up."""
    world = World()
    channel = world.join("driver").channel
    job = runpy.run_path(str(JOB))

    @contextmanager
    def participant(*_: object) -> Iterator[OpenParticipant]:
        yield OpenParticipant(channel, world.node("driver"), Feed())

    names = job["send_table"].__globals__
    names.update(participant=participant, append_new=lambda *_: 1)
    with pytest.raises(EnvironmentFault, match="The channel stopped"):
        job["send_table"](None, None, ParticipantOptions(CHANNEL), Source(channel), 2.0)


def test_a_row_without_an_id_is_refused_before_it_is_sent() -> None:
    """It was sent, and once more by every run."""
    world = World()
    channel = world.join("driver").channel
    with pytest.raises(ConfigurationError, match="no row_id"):
        list(runpy.run_path(str(JOB))["send_rows"](channel, [{"row_id": None, "payload": b"hello"}]))
    assert not list(channel._cycle.machine.sends)


@pytest.mark.parametrize("payload", [None, "text", 7])
def test_a_row_whose_payload_is_not_bytes_is_named(payload: object) -> None:
    """A text or a null ended the job with a traceback, and a number was sent as that many zeros."""
    channel = World().join("driver").channel
    with pytest.raises(LocalError, match="row 7"):
        list(runpy.run_path(str(JOB))["send_rows"](channel, [{"row_id": "row 7", "payload": payload}]))

"""Queries that take turns: in the order of the data flow, and nobody waits for what will not come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from reliable_channel.pipeline import counters
from reliable_channel.pipeline.runner.turns import Turns

CHAIN = {"ingest": None, "reassembly": "sds_messages", "ack": "ordered_sds_messages", "deliver": "deliveries"}
LONG_S = 30.0


class Play:
    """Queries as threads: ``micro_batch`` begins one that writes tables, and ends when it is told to."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.pool = ThreadPoolExecutor(8)

    def micro_batch(self, query: str, *tables: str) -> tuple[threading.Event, Future[None]]:
        began, end = threading.Event(), threading.Event()

        def run() -> None:
            with self.turns.take_turn(query, "a query", 7) as announce:
                for table in tables:
                    announce(table)
                began.set()
                assert end.wait(LONG_S)

        future = self.pool.submit(run)
        assert began.wait(LONG_S)
        return end, future

    def done(self, query: str, *tables: str) -> Future[None]:
        """A micro-batch that is written; its query waits for its turn, or goes on."""
        end, future = self.micro_batch(query, *tables)
        end.set()
        return future


@contextmanager
def playing(patience_s: float = LONG_S, linger_s: float = 0) -> Iterator[Play]:
    play = Play(Turns(CHAIN, patience_s, linger_s))
    try:
        yield play
    finally:
        play.turns.end()
        play.pool.shutdown()


def waits(future: Future[None]) -> bool:
    """Whether it does not go on. A moment is enough to see it go wrongly; that it goes on is waited for elsewhere."""
    with pytest.raises(TimeoutError):
        future.result(0.05)
    return True


def test_a_record_passes_the_chain_in_one_round() -> None:
    with playing() as play:
        ingest = play.done("ingest", "envelopes", "sds_messages", "clock")
        assert waits(ingest)
        reassembly = play.done("reassembly", "reassembled_messages", "ordered_sds_messages")
        assert waits(ingest)
        assert waits(reassembly)
        ack = play.done("ack", "acks", "deliveries")
        assert waits(ingest)
        assert waits(ack)
        deliver = play.done("deliver", "delivered_messages")
        for query in (ingest, reassembly, ack, deliver):
            query.result(LONG_S)


def test_what_has_come_far_goes_first() -> None:
    with playing() as play:
        ended, ack = play.micro_batch("ack", "deliveries")
        ingest = play.done("ingest", "sds_messages")
        ended.set()
        assert waits(ack)
        assert waits(ingest)
        deliver = play.done("deliver", "delivered_messages")
        assert waits(deliver)  # reassembly is due
        play.done("reassembly").result(LONG_S)
        for query in (ack, ingest, deliver):
            query.result(LONG_S)


def test_who_is_next_waits_for_the_one_that_runs_only() -> None:
    with playing() as play:
        ended, ack = play.micro_batch("ack")
        reassembly = play.done("reassembly", "ordered_sds_messages")
        ingest = play.done("ingest", "sds_messages")
        assert waits(reassembly)
        ended.set()
        ack.result(LONG_S)
        assert waits(ingest)
        assert waits(reassembly)


def test_what_a_query_has_read_already_makes_nobody_wait() -> None:
    with playing() as play:
        ended, ingest = play.micro_batch("ingest", "sds_messages")
        reassembly = play.done("reassembly")  # it saw the commit before ingest was done with the other tables
        ended.set()
        reassembly.result(LONG_S)
        ingest.result(LONG_S)


def test_nobody_waits_when_nothing_was_written() -> None:
    with playing() as play:
        play.done("ingest", "quarantine", "clock").result(LONG_S)
        play.done("deliver", "delivered_messages").result(LONG_S)


def test_a_query_whose_rows_may_come_still_waits_for_them_and_is_in_nobodys_way() -> None:
    with playing(linger_s=LONG_S) as play:
        reassembly = play.done("reassembly")
        assert waits(reassembly)
        play.done("ingest").result(LONG_S)
        assert waits(reassembly)
        ingest = play.done("ingest", "sds_messages")
        reassembly.result(LONG_S)
        assert waits(ingest)


def test_a_query_does_not_wait_for_its_rows_for_ever() -> None:
    with playing(linger_s=0.2) as play:
        reassembly = play.done("reassembly")
        assert waits(reassembly)
        reassembly.result(LONG_S)


def test_a_query_alone_never_waits() -> None:
    turns = Turns({"ack": "ordered_sds_messages"})
    with turns.take_turn("ack", "a query", 7) as announce:
        announce("deliveries")


def test_a_query_that_does_not_begin_loses_its_turn() -> None:
    with playing(patience_s=0.01) as play:
        play.done("ingest", "sds_messages").result(LONG_S)


def test_a_failure_waits_for_nobody_and_is_in_nobodys_way() -> None:
    with playing() as play:
        ended, ingest = play.micro_batch("ingest", "envelopes")

        def fails() -> None:
            with play.turns.take_turn("ack", "a query", 7):
                raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            fails()
        ended.set()
        ingest.result(LONG_S)


def test_the_end_lets_everybody_go() -> None:
    with playing() as play:
        ingest = play.done("ingest", "sds_messages")
        assert waits(ingest)
        play.turns.end()
        ingest.result(LONG_S)


def test_the_wait_is_counted() -> None:
    with playing() as play:
        play.done("ingest").result(LONG_S)
    assert counters.take("a query", 7)["turn_wait_ms"] >= 0

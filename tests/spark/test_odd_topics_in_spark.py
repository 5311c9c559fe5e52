"""What the ingest job reads of odd topics; ``tests/kafka/test_odd_topics.py`` reads the same ones as a participant and
as the bridge."""

from __future__ import annotations

import itertools
import os
import threading

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import ENVELOPES, SOURCE_GAPS
from reliable_channel.pipeline.runner.queries import INGEST
from reliable_channel.pipeline.runner.run import run_chain, run_continuously
from tests.support.error_page import pattern_of
from tests.support.odd_topics import ODD_TOPICS, PUBSUB_TOPIC, TOPIC, OddTopic, make, make_anew, write

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

_numbers = itertools.count()


@pytest.mark.parametrize("odd", ODD_TOPICS, ids=str)
def test_the_ingest_job_reads_what_is_right_of_an_odd_topic(
    spark: SparkSession, settings: Settings, broker: Settings, odd: OddTopic
) -> None:
    topic = f"odd-spark-{os.getpid()}-{next(_numbers)}"
    make(broker, topic)
    topics = broker.kafka.topics.model_copy(update={"envelopes": topic})
    configured = settings.model_copy(update={"kafka": broker.kafka.model_copy(update={"topics": topics})})
    first, second = odd.read
    odd.before(broker, topic)
    run_chain(spark, configured, queries=(INGEST,))
    assert texts(configured, odd) == first
    odd.away(broker, topic)
    if odd.created_anew:
        with pytest.raises(ConfigurationError) as fault:
            run_chain(spark, configured, queries=(INGEST,))
        assert pattern_of("A topic that was recreated").fullmatch(str(fault.value))
        assert texts(configured, odd) == first
        return
    run_chain(spark, configured, queries=(INGEST,))
    assert sorted(texts(configured, odd)) == sorted([*first, *second])
    gaps = rows_of(open_table(configured.paths, SOURCE_GAPS))
    assert tuple((g["kafka_partition"], g["first_offset"], g["last_offset"], g["cause"]) for g in gaps) == odd.gaps


def test_a_topic_that_is_recreated_under_the_running_job_ends_it(
    spark: SparkSession, settings: Settings, broker: Settings
) -> None:
    topic = f"odd-spark-{os.getpid()}-{next(_numbers)}"
    make(broker, topic)
    topics = broker.kafka.topics.model_copy(update={"envelopes": topic})
    configured = settings.model_copy(
        update={
            "kafka": broker.kafka.model_copy(update={"topics": topics}),
            "pipeline": settings.pipeline.model_copy(update={"clock_interval_ms": 100}),
            "spark": settings.spark.model_copy(update={"trigger_interval_ms": 1_000}),
        }
    )
    write(broker, topic, ["old 0", "old 1"])
    run_chain(spark, configured, queries=(INGEST,))

    def recreate(progress: str) -> None:
        make_anew(broker, topic)
        write(broker, topic, ["new"])

    with pytest.raises(ConfigurationError) as fault:
        run_continuously(spark, configured, threading.Event(), queries=(INGEST,), on_progress=recreate)
    assert pattern_of("A topic that was recreated").fullmatch(str(fault.value))


def texts(settings: Settings, odd: OddTopic) -> list[str]:
    """The texts of the envelopes in the tables, in record order."""
    known = {message_hash(PUBSUB_TOPIC, WakuMessage(text.encode(), TOPIC)): text for some in odd.read for text in some}
    rows = rows_of(open_table(settings.paths, ENVELOPES))
    rows.sort(key=lambda row: (row["kafka_partition"], row["kafka_offset"]))
    return [known.get(row["message_hash"], row["message_hash"].hex()) for row in rows]

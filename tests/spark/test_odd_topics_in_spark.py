"""What the ingest job reads of odd topics; ``tests/kafka/test_odd_topics.py`` reads the same ones as a participant and
as the bridge."""

from __future__ import annotations

import itertools
import os

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import ENVELOPES, SOURCE_GAPS
from reliable_channel.pipeline.runner.queries import INGEST
from reliable_channel.pipeline.runner.run import run_chain
from tests.support.error_page import pattern_of
from tests.support.odd_topics import ODD_TOPICS, PUBSUB_TOPIC, TOPIC, OddTopic, make

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


def texts(settings: Settings, odd: OddTopic) -> list[str]:
    """The texts of the envelopes in the tables, in record order."""
    known = {message_hash(PUBSUB_TOPIC, WakuMessage(text.encode(), TOPIC)): text for some in odd.read for text in some}
    rows = rows_of(open_table(settings.paths, ENVELOPES))
    rows.sort(key=lambda row: (row["kafka_partition"], row["kafka_offset"]))
    return [known.get(row["message_hash"], row["message_hash"].hex()) for row in rows]

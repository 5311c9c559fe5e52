"""Records Kafka offsets that are missing from a micro-batch: removed by retention, deleted, or unreadable.

With ``failOnDataLoss=false`` Spark skips missing offsets silently, so each skipped range becomes a ``source_gaps`` row.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import SOURCE_GAPS
from reliable_channel.pipeline.clock import Progress, TopicPartition
from reliable_channel.pipeline.ingest.task import OffsetGap, PartitionSummary


def gap_rows(parts: Mapping[TopicPartition, PartitionSummary], before: Mapping[TopicPartition, Progress]) -> pa.Table:
    """The gaps of a micro-batch as rows of ``source_gaps``: those between the last micro-batch and this one, and those
    inside it.

    Before the first record ever read there is no gap: what was deleted then was never to be observed."""
    rows = []
    for (topic, partition), part in sorted(parts.items()):
        gaps = list(part.gaps)
        known = before.get((topic, partition))
        if known is not None and part.first_offset > known.next_offset:
            gaps.insert(0, OffsetGap(known.next_offset, part.first_offset - 1, known.event_time_us, part.first_us))
        rows += [
            {
                "kafka_topic": topic,
                "kafka_partition": partition,
                "first_offset": gap.first,
                "last_offset": gap.last,
                "cause": "offset_jump",
                "name": f"{topic}/{partition}/{gap.first}",
                "status": "open",
                "from_time": gap.from_us,
                "to_time": gap.to_us,
                "ingest_time": part.ingest_us,
            }
            for gap in gaps
        ]
    return as_arrow(rows, SOURCE_GAPS)

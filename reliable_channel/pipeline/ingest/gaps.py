"""Records Kafka offsets that are missing from a micro-batch: removed by retention, deleted, or unreadable.

With ``failOnDataLoss=false`` Spark skips missing offsets silently, so each skipped range becomes a ``source_gaps`` row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import SOURCE_GAPS
from reliable_channel.pipeline.clock import Progress, TopicPartition
from reliable_channel.pipeline.ingest.task import OffsetGap, PartitionSummary


class Gap(NamedTuple):
    """Missing offsets of a partition, and the clock (µs) of the micro-batch that saw it."""

    place: TopicPartition
    jump: OffsetGap
    ingest_us: int


def missing_offsets(
    parts: Mapping[TopicPartition, PartitionSummary], before: Mapping[TopicPartition, Progress]
) -> list[Gap]:
    """The gaps of a micro-batch: between the last one and this one, and inside it.

    Before the first record ever read there is no gap: what was deleted then was never to be observed."""
    gaps = []
    for place, part in parts.items():
        known = before.get(place)
        if known is not None and part.first_offset > known.next_offset:
            first = OffsetGap(known.next_offset, part.first_offset - 1, known.event_time_us, part.first_us)
            gaps.append(Gap(place, first, part.ingest_us))
        gaps += [Gap(place, jump, part.ingest_us) for jump in part.jumps]
    return sorted(gaps, key=lambda gap: (gap.place, gap.jump.first))


def gap_rows(gaps: list[Gap]) -> pa.Table:
    """Gaps as rows of ``source_gaps``."""
    rows = [
        {
            "kafka_topic": gap.place[0],
            "kafka_partition": gap.place[1],
            "first_offset": gap.jump.first,
            "last_offset": gap.jump.last,
            "cause": "offset_jump",
            "name": f"{gap.place[0]}/{gap.place[1]}/{gap.jump.first}",
            "status": "open",
            "from_time": gap.jump.from_us,
            "to_time": gap.jump.to_us,
            "ingest_time": gap.ingest_us,
        }
        for gap in gaps
    ]
    return as_arrow(rows, SOURCE_GAPS)

"""Kafka envelopes → envelopes, sds_messages, quarantine, source_gaps, clock.

``spark-submit jobs/ingest.py [--once | --continuous] [--config FILE]``: the configuration has the places of Kafka and
the tables, ``reliable_channel.pipeline.runner.queries.INGEST`` what is read, how it is transformed and what is written.
"""

import sys

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from reliable_channel.pipeline.runner.job import main
    from reliable_channel.pipeline.runner.queries import INGEST

if __name__ == "__main__":
    sys.exit(main(INGEST))

"""ordered_sds_messages → deliveries, acks, refetch_requests, lost_dependencies, repair_requests, channel_events.

``spark-submit jobs/ack.py [--once | --continuous] [--config FILE]``: the configuration has the places of Kafka and the
tables, ``reliable_channel.pipeline.runner.queries.ACK`` what is read, how it is transformed and what is written.
"""

import sys

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from reliable_channel.pipeline.runner.job import main
    from reliable_channel.pipeline.runner.queries import ACK

if __name__ == "__main__":
    sys.exit(main(ACK))

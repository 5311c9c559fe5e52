"""sds_messages → ordered_sds_messages, reassembled_messages, incomplete_messages.

``spark-submit jobs/reassembly.py [--once | --continuous] [--config FILE]``: the configuration has the places of Kafka
and the tables, ``reliable_channel.pipeline.runner.queries.REASSEMBLY`` what is read, how it is transformed and what is
written.
"""

import sys

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from reliable_channel.pipeline.runner.job import main
    from reliable_channel.pipeline.runner.queries import REASSEMBLY

if __name__ == "__main__":
    sys.exit(main(REASSEMBLY))

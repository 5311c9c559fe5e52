"""refetch_requests and source_gaps → store nodes → Kafka (source=store); store_presence, also of a sample of all.

``python jobs/refetch.py [--once | --continuous] [--config FILE]``: needs no Spark, so run it with Python; it waits for
answers. ``store.nodes`` lists the stores to query. With ``--continuous`` it queries at every trigger interval until
SIGTERM or Ctrl-C.
"""

import sys
import time

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from reliable_channel.config import Settings
    from reliable_channel.evidence.refetch import refetch_once
    from reliable_channel.lake.live import record_outcome
    from reliable_channel.runtime.build import store_client
    from reliable_channel.runtime.job import add_modes, make_parser, run_job
    from reliable_channel.runtime.own_broker import check_kafka


def main() -> int:
    parser = make_parser("refetch")
    add_modes(parser)
    options = parser.parse_args()

    def query_stores(settings: Settings) -> None:
        with record_outcome(settings.paths, "refetch"):
            sys.stderr.write(f"{refetch_once(settings, store_client)}\n")

    def run(settings: Settings) -> None:
        check_kafka(settings)
        try:
            query_stores(settings)
            while options.continuous:
                time.sleep(settings.spark.trigger_interval_ms / 1000)
                query_stores(settings)
        except (KeyboardInterrupt, SystemExit):  # at once, since stores may take hours; the next start asks again
            if not options.continuous:
                raise

    return run_job("refetch", options.config, run)


if __name__ == "__main__":
    sys.exit(main())

"""The evidence topic → sender_events and source_gaps.

``python jobs/evidence.py [--config FILE]``: needs no Spark; reads the records available now, each once. Run it before
verdict.
"""

import sys

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from reliable_channel.config import Settings
    from reliable_channel.evidence.collecting import collect_evidence
    from reliable_channel.lake.live import record_outcome
    from reliable_channel.runtime.job import make_parser, run_job
    from reliable_channel.runtime.own_broker import check_kafka


def collect(settings: Settings) -> None:
    check_kafka(settings)
    with record_outcome(settings.paths, "evidence"):
        sys.stderr.write(f"{collect_evidence(settings)}\n")


if __name__ == "__main__":
    sys.exit(run_job("evidence", make_parser("evidence").parse_args().config, collect))

"""The evidence topic → sender_events and source_gaps.

``python jobs/evidence.py [--config FILE]``: needs no Spark; reads the records available now, each once. Run it before
verdict.
"""

import argparse
import sys

from reliable_channel.config import load
from reliable_channel.evidence.collecting import collect_evidence
from reliable_channel.runtime.faults import print_fault
from reliable_channel.runtime.logs import tame_kafka
from reliable_channel.runtime.own_broker import require_own_broker


def main() -> int:
    parser = argparse.ArgumentParser(prog="jobs/evidence.py")
    parser.add_argument("--config", help="a YAML file, or the name of one in conf/")
    tame_kafka()
    try:
        settings = load(parser.parse_args().config)
        require_own_broker(settings)
        count = collect_evidence(settings)
    except Exception as error:  # whatever it is, a person gets one sentence
        return print_fault(error, "evidence")
    sys.stderr.write(f"{count} records of evidence\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

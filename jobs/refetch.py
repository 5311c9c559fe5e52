"""refetch_requests and source_gaps → store nodes → Kafka (source=store); store_presence, also of a sample of all.

``python jobs/refetch.py [--once | --continuous] [--config FILE]``: needs no Spark, so run it with Python; it waits for
answers. ``store.nodes`` lists the stores to query. With ``--continuous`` it queries at every trigger interval until
SIGTERM.
"""

import argparse
import sys
import threading

from reliable_channel.config import load
from reliable_channel.evidence.refetch import refetch_once
from reliable_channel.runtime.build import store_client
from reliable_channel.runtime.faults import print_fault
from reliable_channel.runtime.interrupts import handle_signals
from reliable_channel.runtime.logs import tame_kafka
from reliable_channel.runtime.own_broker import require_own_broker


def main() -> int:
    parser = argparse.ArgumentParser(prog="jobs/refetch.py")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="what is open now, then end (the default)")
    mode.add_argument("--continuous", action="store_true", help="until SIGTERM")
    parser.add_argument("--config", help="a YAML file, or the name of one in conf/")
    options = parser.parse_args()
    stop = threading.Event()
    with handle_signals(lambda *_: stop.set()):
        tame_kafka()
        try:
            settings = load(options.config)
            require_own_broker(settings)
            while not stop.is_set():
                outcome = refetch_once(settings, store_client)
                sys.stderr.write(f"{outcome}\n")
                if not options.continuous or stop.wait(settings.spark.trigger_interval_ms / 1000):
                    break
        except Exception as error:  # whatever it is, a person gets one sentence
            return print_fault(error, "refetch")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""All tables → alerts, and the webhook: evaluates the rules of conf/alerts.yaml.

``jobs/alerts.py [--config FILE]``: for cron; needs no Spark (docs/alerts.md).
"""

import argparse
import sys

from reliable_channel.analysis.alerts.check import check
from reliable_channel.analysis.alerts.text import lines
from reliable_channel.config import load
from reliable_channel.runtime.faults import print_fault


def main(arguments: list[str] | None = None) -> int:
    """Run once and return the exit code: 0 done, 1 a fault (also of the webhook), 2 a wrong setting or rule."""
    parser = argparse.ArgumentParser(prog="jobs/alerts.py")
    parser.add_argument("--config", help="a YAML file, or the name of one in conf/")
    options = parser.parse_args(arguments)
    try:
        outcome = check(load(options.config))
        sys.stdout.write("\n".join(lines(outcome)) + "\n")
        if outcome.fault is not None:
            raise outcome.fault
    except Exception as error:  # whatever it is, a person gets one sentence
        return print_fault(error, "alerts")
    return 0


if __name__ == "__main__":
    sys.exit(main())

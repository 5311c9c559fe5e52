"""All tables: expired rows deleted, files compacted and ordered, old files removed.

``jobs/maintain.py [--dry-run] [--config FILE]``: for cron, beside the running jobs; needs no Spark
(docs/operations.md *Maintenance*).
"""

import argparse
import sys

from reliable_channel.config import load
from reliable_channel.pipeline.maintenance import maintain
from reliable_channel.runtime.faults import print_fault


def main(arguments: list[str] | None = None) -> int:
    """Run once and return the exit code: 0 done, 1 a fault, 2 a wrong setting."""
    parser = argparse.ArgumentParser(prog="jobs/maintain.py")
    parser.add_argument("--dry-run", action="store_true", help="count what would go, and change nothing")
    parser.add_argument("--config", help="a YAML file, or the name of one in conf/")
    options = parser.parse_args(arguments)
    try:
        maintain.run(load(options.config), dry_run=options.dry_run, say=print)
    except Exception as error:  # whatever it is, a person gets one sentence
        return print_fault(error, "maintain")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""All tables: expired rows deleted, files compacted and ordered, old files removed.

``jobs/maintain.py [--dry-run] [--config FILE]``: for cron, beside the running jobs; needs no Spark
(docs/operations.md *Maintenance*).
"""

import sys
from functools import partial

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from reliable_channel.pipeline.maintenance import maintain
    from reliable_channel.runtime.job import make_parser, run_job

if __name__ == "__main__":
    parser = make_parser("maintain")
    parser.add_argument("--dry-run", action="store_true", help="count what would go, and change nothing")
    options = parser.parse_args()
    sys.exit(run_job("maintain", options.config, partial(maintain.run, dry_run=options.dry_run, say=print)))

"""All tables: expired rows deleted, files compacted and clustered, old files removed.

``spark-submit jobs/maintain.py [--dry-run] [--config FILE]``: for cron, beside the running jobs
(docs/operations.md *Maintenance*).
"""

import functools
import sys

from reliable_channel.pipeline.operations import maintain
from reliable_channel.pipeline.running.job import main_batch

if __name__ == "__main__":
    arguments = sys.argv[1:]
    dry_run = "--dry-run" in arguments
    work = functools.partial(maintain.run, dry_run=dry_run, say=print)
    sys.exit(main_batch("maintain", work, [a for a in arguments if a != "--dry-run"]))

"""All tables: expired rows deleted, files compacted and clustered, old files removed.

``spark-submit jobs/maintain.py [--dry-run] [--config FILE]``: for cron, beside the running jobs
(docs/operations.md *Maintenance*).
"""

import functools
import sys

from reliable_channel.pipeline.operations import maintain
from reliable_channel.pipeline.running.job import main_batch

if __name__ == "__main__":
    work = functools.partial(maintain.run, say=print)
    sys.exit(main_batch("maintain", work, dry_run="count what would go, and change nothing"))

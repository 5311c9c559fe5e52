"""All tables' evidence → delivery_status: what became of every message, and why.

``spark-submit jobs/verdict.py [--config FILE]``: a batch job, for cron; it judges as of the recorded clock and looks
again at what was not settled (docs/pipeline.md *Verdicts*).
"""

import sys

from reliable_channel.pipeline import verdict
from reliable_channel.pipeline.job import main_batch

if __name__ == "__main__":
    sys.exit(main_batch("verdict", verdict.run))

"""All tables' evidence → delivery_status: the verdict of every message, with its cause.

``spark-submit jobs/verdict.py [--config FILE]``: a batch job, for cron. As of the recorded clock, it computes the
verdicts of messages about which new rows hold evidence, and of messages that were not settled (docs/pipeline.md
*Verdicts*).
"""

import sys

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from pyspark.sql import SparkSession

    from reliable_channel.analysis.alerts.check import check
    from reliable_channel.analysis.alerts.text import summary
    from reliable_channel.config import Settings
    from reliable_channel.lake.live import record_outcome
    from reliable_channel.pipeline.runner.job import main_batch
    from reliable_channel.pipeline.verdict import verdicts


def judge(spark: SparkSession, settings: Settings) -> None:
    """The verdicts, then the alerts that follow from them (docs/alerts.md)."""
    try:
        with record_outcome(settings.paths, "verdict"):
            print(f"verdict: {verdicts.run(spark, settings)} messages judged")
    finally:
        print(f"alerts: {summary(check(settings))}")


if __name__ == "__main__":
    sys.exit(main_batch("verdict", judge))

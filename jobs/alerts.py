"""All tables → alerts, and the webhook: evaluates the rules of conf/alerts.yaml.

``jobs/alerts.py [--config FILE]``: for cron; needs no Spark (docs/alerts.md).
"""

import sys

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from reliable_channel.analysis.alerts.check import check
    from reliable_channel.analysis.alerts.text import lines
    from reliable_channel.config import Settings
    from reliable_channel.runtime.job import make_parser, run_job


def run(settings: Settings) -> None:
    """Check the rules once. Raises the fault of the webhook, if there was one."""
    outcome = check(settings)
    sys.stdout.write("\n".join(lines(outcome)) + "\n")
    if outcome.fault is not None:
        raise outcome.fault


def main(arguments: list[str] | None = None) -> int:
    return run_job("alerts", make_parser("alerts").parse_args(arguments).config, run)


if __name__ == "__main__":
    sys.exit(main())

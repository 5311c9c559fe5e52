"""The main function of a job: ``spark-submit jobs/<name>.py [--once | --continuous] [--config FILE]``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

from reliable_channel.config import Settings
from reliable_channel.lake.live import declare_live
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.runner.metrics import record_metrics
from reliable_channel.pipeline.runner.one_driver import hold_checkpoints
from reliable_channel.pipeline.runner.queries import CHAIN, Query
from reliable_channel.pipeline.runner.run import run_continuously, run_to_end
from reliable_channel.runtime.interrupts import handle_signals, note_interrupts
from reliable_channel.runtime.job import add_modes, make_parser, run_job
from reliable_channel.runtime.own_broker import check_kafka
from reliable_channel.runtime.spark import spark_session


def main(query: Query, arguments: list[str] | None = None) -> int:
    """Run one query and return the exit code: 0 done, or with ``--continuous`` stopped by a signal, 1 a fault, 2 an
    invalid setting, 130 ended by Ctrl-C. SIGTERM raises ``SystemExit(143)`` instead, SIGHUP ``SystemExit(129)``.

    ``--once`` processes the available rows and ends (cron, back-fill); ``--continuous`` runs until SIGTERM or Ctrl-C.
    """
    parser = make_parser(query.name)
    add_modes(parser)
    options = parser.parse_args(arguments)
    stop = threading.Event()

    def run(settings: Settings) -> None:
        if not isinstance(query.reads, Table):
            check_kafka(settings, for_spark=True)
        with (
            hold_checkpoints(settings.paths, [query.name]),
            handle_signals(lambda *_: stop.set()) if options.continuous else nullcontext(),
            spark_session(settings, f"reliable-channel {query.name}") as spark,
            record_metrics(spark, settings, serve=options.continuous, port_offset=_find_port_offset(query)),
        ):
            if options.continuous:
                with declare_live(settings.paths, query.name, stop):
                    run_continuously(spark, settings, stop, queries=(query,))
            else:
                with note_interrupts() as raise_if_interrupted:
                    run_to_end(spark, settings, query, raise_if_interrupted)

    return run_job(query.name, options.config, run)


def main_batch(name: str, run: Callable[..., object]) -> int:
    """Run one batch job, ``run(spark, settings)``, and return the exit code as :func:`main` does."""

    def run_in_session(settings: Settings) -> None:
        with spark_session(settings, f"reliable-channel {name}") as spark:
            run(spark, settings)

    return run_job(name, make_parser(name).parse_args().config, run_in_session)


def _find_port_offset(query: Query) -> int:
    """The offset of a job's metrics port: each job has its own, after that of ``reliable-channel run``."""
    return 1 + [other.name for other in CHAIN].index(query.name)

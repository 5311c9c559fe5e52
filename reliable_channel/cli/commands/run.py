"""``reliable-channel run``: the whole pipeline in one local Spark session."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.cli.commands import echo, open_chain, read_settings

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from reliable_channel.config import Settings
    from reliable_channel.pipeline.runner.metrics import PrometheusMetrics


VERDICTS = "verdicts"
"""The job group of the verdict job while the pipeline runs."""
LAST_ROUND_S = 20.0
"""How long the end of a continuous run waits for a round of verdicts, whose Spark jobs are cancelled."""
FIRST_ROUND_MS = 300_000
"""How long the first round of a continuous run may take: it judges everything that arrived since the last run."""
FAILED_ROUNDS = 3
"""After so many rounds in a row that failed, a job of a continuous run counts as failing."""
STATUS_S = 60.0
LAST_BATCH = "reliable_channel_query_last_batch_timestamp_seconds"


def run_refetch(settings: Settings, say: Callable[[str], None]) -> bool:
    """Query the store nodes once; returns whether they returned envelopes, so that the chain has more to read."""
    from reliable_channel.evidence.refetch import refetch_once
    from reliable_channel.runtime.build import store_client

    outcome = refetch_once(settings, store_client)
    say(f"refetch: {outcome}")
    return outcome.written > 0


def run_collection(settings: Settings, say: Callable[[str], None]) -> None:
    """Read the evidence of senders and the bridge into ``sender_events`` and ``source_gaps``."""
    from reliable_channel.evidence.collecting import collect_evidence

    if any(collected := collect_evidence(settings)):
        say(f"evidence: {collected}")


def repeat_until(
    name: str,
    work: Callable[[], object],
    pause_s: float,
    stop: threading.Event,
    say: Callable[[str], None],
    record_failing: Callable[[str, bool], object],
) -> None:
    """Do this work after every pause until ``stop``; a fault is printed, once while it lasts, and the next round tries
    again.

    ``record_failing`` is called with whether :data:`FAILED_ROUNDS` in a row failed, whenever that changes."""
    from reliable_channel.runtime.faults import as_fault

    failed, recorded, said = 0, None, ""
    while not stop.wait(pause_s):
        try:
            work()
            failed, said = 0, ""
        except Exception as fault:  # whatever it is, the pipeline goes on without
            failed += 1
            if not stop.is_set() and said != (why := str(as_fault(fault))):
                say(f"{name}: {why}")
                said = why
        if failed in (0, FAILED_ROUNDS) and recorded != (failed > 0) and not stop.is_set():
            recorded = failed > 0
            record_failing(name, recorded)


def run_verdicts(spark: SparkSession, settings: Settings, say: Callable[[str], None]) -> None:
    """Read the evidence, compute the verdicts it affects, then check the alerts that follow."""
    from reliable_channel.lake.create import create_tables
    from reliable_channel.lake.live import record_outcome
    from reliable_channel.pipeline.verdict import verdicts

    create_tables(settings.paths, verdicts.TABLES_READ)
    run_collection(settings, say)
    try:
        with record_outcome(settings.paths, "verdict"):
            run_new_verdicts(spark, settings, say)
    finally:
        check_alerts(settings, say)


def run_new_verdicts(spark: SparkSession, settings: Settings, say: Callable[[str], None]) -> None:
    """Compute the verdicts of messages about which tables have new rows."""
    from reliable_channel.pipeline.verdict import verdicts

    say(f"verdict: {verdicts.run(spark, settings)} messages judged")


def check_alerts(settings: Settings, say: Callable[[str], None]) -> Counter[tuple[str, str]]:
    """Check the alerts; returns how many are raised, by rule and severity."""
    from reliable_channel.analysis.alerts.check import check
    from reliable_channel.analysis.alerts.text import summary

    checked = check(settings)
    say(f"alerts: {summary(checked)}")
    return Counter((alert.alert, alert.severity) for alert in checked.open_alerts)


def judge_until(
    spark: SparkSession,
    settings: Settings,
    stop: threading.Event,
    say: Callable[[str], None],
    metrics: PrometheusMetrics,
    declare: Callable[[float], object],
    record_failing: Callable[[str, bool], object],
) -> None:
    """Compute verdicts and check alerts until ``stop``, with a pause of ``pipeline.verdict_interval_ms`` after every
    round, however long it took: so a verdict is late by an interval and its round at most.

    ``declare`` is called after each good round with the time, in ms, within which the next one must have ended;
    ``record_failing`` as by :func:`repeat_until`."""
    from reliable_channel.analysis.alerts.heartbeat import due_ms
    from reliable_channel.analysis.figures import QUANTILES, outcome
    from reliable_channel.analysis.report.snapshot import TableSnapshot

    pause_s = settings.pipeline.verdict_interval_ms / 1000
    # Of this thread alone, so that the end of a run cancels no micro-batch of the chain.
    spark.sparkContext.setJobGroup(VERDICTS, "verdicts", interruptOnCancel=True)
    session = spark.newSession()  # its views and settings are its own

    def judge() -> None:
        started = time.monotonic()
        try:
            run_new_verdicts(session, settings, say)
        finally:  # also when no verdict can be given: that is an alert itself
            metrics.record_alerts(check_alerts(settings, say))
        figures = outcome(TableSnapshot(settings.paths))
        latency = {stage: dict(zip(QUANTILES, ms, strict=False)) for stage, ms in figures.latency_ms.items()}
        metrics.record_verdicts(figures.verdicts, figures.causes, latency, figures.newest)
        due = due_ms(pause_s, time.monotonic() - started)
        declare(due)
        metrics.next_round(time.time() + due / 1000)

    repeat_until("verdict", judge, pause_s, stop, say, record_failing)


def summarize_tables(settings: Settings) -> str:
    """A one-line summary of the tables after a run, and the command that shows more."""
    from reliable_channel.analysis.command_name import command_name
    from reliable_channel.analysis.figures import LOSS, VERDICTS, records
    from reliable_channel.analysis.report.snapshot import TableSnapshot
    from reliable_channel.analysis.text import percent, pluralize

    (totals,) = TableSnapshot(settings.paths).select(
        f"""SELECT {records()} AS records, (SELECT count(*) FROM delivered_messages) AS came, *, {LOSS} AS loss
            FROM (SELECT {VERDICTS} FROM delivery_status)"""  # noqa: S608 - text of our own
    )
    judged = totals["messages"] > 0
    loss = f"{totals['missing']:,} missing ({percent(totals['loss'])})" if judged else "not judged (--verdicts)"
    delivered = totals["delivered"] if judged else totals["came"]
    done = f"{pluralize(totals['records'], 'records')}, {pluralize(delivered, 'messages')} delivered, {loss}"
    return f"Done: {done}. What and why: {command_name()} report"


def format_status(metrics: PrometheusMetrics, now: float) -> str:
    """The status of a continuous run in one line: records since its start, messages of the last 24 hours of the
    recorded clock. ``now`` is the time in Unix s."""
    value = metrics.registry.get_sample_value

    def age(name: str, **labels: str) -> str:
        at = value(name, labels)
        return "never" if not at else f"{max(0, now - at):.0f} s ago"

    read = value("reliable_channel_query_rows_total", {"query": "ingest", "metric": "input_rows"}) or 0
    batches = (f"{job} {age(LAST_BATCH, query=job)}" for job in ("ingest", "reassembly", "ack"))
    line = f"{read:,.0f} records read; last micro-batch: {', '.join(batches)}"
    counts = {verdict: value("reliable_channel_messages", {"verdict": verdict}) for verdict in ("delivered", "missing")}
    if None in counts.values():
        return f"{line}; no verdicts yet"
    return f"{line}; {counts['delivered']:,.0f} messages delivered and {counts['missing']:,.0f} missing in 24 h"


def keep_status(stop: threading.Event, metrics: PrometheusMetrics, terminal: bool) -> None:
    """Write the status line to standard error until ``stop``: every second into the same line of a terminal, else once
    a minute."""
    while not stop.wait(1 if terminal else STATUS_S):
        line = format_status(metrics, time.time())
        echo(
            # Two spaces before it, and one column free: a full line would wrap, and stay.
            f"\r\033[K  {line[: shutil.get_terminal_size().columns - 3]}" if terminal else f"  {line}",
            err=True,
            nl=not terminal,
        )


def serve(spark: SparkSession, settings: Settings, say: Callable[[str], None], *, terminal: bool = False) -> None:
    """Run the chain, evidence, refetch, verdicts and alerts until SIGTERM or SIGINT; only in the main thread. Raises
    ``EnvironmentFault`` if a query of the chain fails. ``terminal``: the status goes into one line."""
    import threading
    from functools import partial

    from reliable_channel.analysis.alerts.heartbeat import Heartbeat
    from reliable_channel.lake.live import declare_live, record_failing
    from reliable_channel.pipeline.runner.metrics import record_metrics
    from reliable_channel.pipeline.runner.queries import INGEST
    from reliable_channel.pipeline.runner.run import run_continuously
    from reliable_channel.runtime.interrupts import handle_signals

    stop, pause_s = threading.Event(), settings.spark.trigger_interval_ms / 1000
    repeated = [("evidence", run_collection), *([("refetch", run_refetch)] if settings.store.nodes else [])]
    record = partial(record_failing, settings.paths)
    if not settings.store.nodes:
        record("refetch", False)  # which may have failed while there were some
    with handle_signals(lambda *_: stop.set()):
        # Nobody joins these: what the end of the process interrupts, the next run repeats. Rows of evidence are written
        # with their position in the topic, and refetch is at least once (docs/pipeline.md, *Refetch*).
        for name, work in repeated:
            rounds = (name, partial(work, settings, say), pause_s, stop, say, record)
            threading.Thread(target=repeat_until, args=rounds, daemon=True).start()
        with record_metrics(spark, settings, serve=True) as metrics:
            threading.Thread(target=keep_status, args=(stop, metrics, terminal), daemon=True).start()
            heartbeat = Heartbeat(settings.paths)
            judge = threading.Thread(
                target=judge_until, args=(spark, settings, stop, say, metrics, heartbeat.record, record), daemon=True
            )
            if settings.pipeline.verdict_interval_ms:
                due = heartbeat.start(FIRST_ROUND_MS + settings.pipeline.verdict_interval_ms)
                metrics.next_round(due.timestamp())
                judge.start()
            try:
                with declare_live(settings.paths, INGEST.name, stop):
                    run_continuously(spark, settings, stop, on_progress=say)
            finally:
                in_order = stop.is_set()  # not after a fault: the run was to go on
                stop.set()
                if judge.is_alive():
                    with suppress(Exception):  # a signal to all processes of the run has ended the JVM, too
                        spark.sparkContext.cancelJobGroup(VERDICTS)
                    judge.join(LAST_ROUND_S)
                if in_order:
                    heartbeat.record(0)


def refuse_tables(settings: Settings) -> None:
    """Raise ``ConfigurationError`` if a table is of another version, before any job writes: those of evidence and
    verdicts come last, and a continuous run goes on without them."""
    from reliable_channel.core.errors import EnvironmentFault
    from reliable_channel.lake.create import check_existing
    from reliable_channel.lake.tables import TABLES

    for table in TABLES:
        with suppress(EnvironmentFault):  # a damaged one stops only the job that writes it, which names it
            check_existing(settings.paths, table)


def register(app: typer.Typer) -> None:
    @app.command()
    def run(
        context: typer.Context,
        continuous: Annotated[
            bool, typer.Option("--continuous/--once", help="Until SIGTERM or Ctrl-C, or only the available records.")
        ] = False,
        close_after_ms: Annotated[
            int | None,
            typer.Option(
                min=0,
                max=10**12,
                help="With --once: end with a closing tick so many ms after the last record (default: wall clock).",
            ),
        ] = None,
        verdicts: Annotated[
            bool, typer.Option("--verdicts", help="With --once: compute the verdicts at the end.")
        ] = False,
    ) -> None:
        """Run ingest, reassembly, ack, evidence and, with store.nodes, refetch in one local Spark session.

        With --continuous also verdicts and alerts, once a minute (pipeline.verdict_interval_ms)."""
        from reliable_channel.pipeline.runner.metrics import record_metrics
        from reliable_channel.pipeline.runner.run import run_once
        from reliable_channel.runtime.own_broker import check_kafka

        settings = read_settings(context)
        check_kafka(settings, for_spark=True)
        refuse_tables(settings)

        terminal = continuous and sys.stderr.isatty()

        def say(what: str) -> None:
            echo(f"\r\033[K  {what}" if terminal else f"  {what}", err=True)

        with open_chain(settings) as spark:
            if not continuous:
                with record_metrics(spark, settings, serve=False):
                    run_once(spark, settings, close_after_ms=close_after_ms, on_progress=say)
                    while settings.store.nodes and run_refetch(settings, say):
                        run_once(spark, settings, close_after_ms=close_after_ms, on_progress=say)
                    if verdicts:
                        run_verdicts(spark, settings, say)
                    else:
                        run_collection(settings, say)
                typer.echo(summarize_tables(settings))
                return
            serve(spark, settings, say, terminal=terminal)
        echo("Stopped.", err=True)

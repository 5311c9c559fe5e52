"""``reliable-channel report``: what was delivered, what was lost and why, in a window of time; without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reliable_channel.cli.commands import TablesOption, read_settings

if TYPE_CHECKING:
    from reliable_channel.analysis.report.snapshot import TableSnapshot
    from reliable_channel.analysis.report.source import Window

_window, _form, _limit = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Which time, which channel", "In which form", "Thresholds: exit with 3 when crossed")
)
"""The options, by their panel of the help."""
CROSSED = 3
"""The exit code when a threshold is crossed."""


def register(app: typer.Typer) -> None:
    @app.command()
    def report(
        context: typer.Context,
        since: Annotated[
            str | None,
            _window("--from", metavar="TIME", help="2026-11-01, 2026-11-01T12:00 (UTC), or back from now: 24h, 7d."),
        ] = None,
        until: Annotated[
            str | None, _window("--to", metavar="TIME", help="The end, itself not in it; like --from.")
        ] = None,
        channel: Annotated[str | None, _window(help="Only this SDS channel id.")] = None,
        content_topic: Annotated[str | None, _window(help="Only this Waku content topic.")] = None,
        html: Annotated[Path | None, _form(metavar="FILE", help="Write one self-contained page with charts.")] = None,
        as_json: Annotated[bool, _form("--json", help="Print one JSON object (docs/report.md).")] = False,
        csv: Annotated[Path | None, _form(metavar="DIR", help="Write every table as a CSV file.")] = None,
        max_loss: Annotated[
            str | None, _limit(metavar="SHARE", help="Largest share of messages that may be missing: 0.1% or 0.001.")
        ] = None,
        max_latency: Annotated[
            str | None, _limit(metavar="TIME", help="Longest that 99 of 100 messages may take: 30s, 500ms.")
        ] = None,
        max_quarantine: Annotated[
            str | None, _limit(metavar="SHARE", help="Largest share of records that may be quarantined.")
        ] = None,
        max_lag: Annotated[
            int | None,
            _limit(metavar="RECORDS", min=0, max=10**12, help="Most records that ingest may be behind Kafka."),
        ] = None,
        min_messages: Annotated[
            int | None, _limit(metavar="COUNT", min=1, max=10**12, help="Fewest messages there must be.")
        ] = None,
        max_age: Annotated[
            str | None, _limit(metavar="TIME", help="How long ago the newest trace of a message may be: 15min, 1h.")
        ] = None,
        missing: Annotated[bool, _form("--missing", help="Only the missing messages, one a line.")] = False,
        message: Annotated[
            str | None, _form(metavar="ID", help="Only this message: its key, SDS id or hash, or how one begins.")
        ] = None,
        tables: TablesOption = None,
    ) -> None:
        """Report which messages were delivered, which are missing and why. Needs no Spark.

        Without --from and --to it covers everything in the tables. A message belongs to the window
        in which its first trace was seen, a delivery or acknowledgement to its own time.

        Exit codes: 0 all well, 1 the tables cannot be read or hold no data for a threshold,
        2 wrong usage, 3 a threshold is crossed.

        For cron: reliable-channel report --from 1h --max-loss 0.1% --min-messages 1 --max-age 15min
        """
        import json
        import sys

        from rich.console import Console

        from reliable_channel.analysis.alerts.heartbeat import find_stopped
        from reliable_channel.analysis.report import csv_files, summary, terminal
        from reliable_channel.analysis.report.behind import tell_behind
        from reliable_channel.analysis.report.investigate import require_channel
        from reliable_channel.analysis.report.snapshot import TableSnapshot
        from reliable_channel.analysis.report.source import TableWindow
        from reliable_channel.analysis.report.thresholds import Thresholds, checks, share
        from reliable_channel.analysis.report.times import duration_ms

        now = dt.datetime.now(dt.UTC)
        window = parse_window(since, until, channel, content_topic, now)
        limits = Thresholds(
            loss=None if max_loss is None else share(max_loss),
            latency_ms=None if max_latency is None else duration_ms(max_latency),
            quarantine=None if max_quarantine is None else share(max_quarantine),
            lag_records=max_lag,
            messages=min_messages,
            age_ms=None if max_age is None else duration_ms(max_age),
        )
        lake = TableSnapshot(read_settings(context, tables).paths)
        lake.require_any()
        if message is not None:
            typer.echo(describe_messages(lake, message, as_json))
            return
        source = TableWindow(lake, window)
        require_channel(source)
        if html is not None:  # the library of charts is loaded while the first questions are asked
            Thread(target=import_module, args=("reliable_channel.analysis.report.drawing",)).start()
        answers = summary.collect(source, now)
        answers["notes"][:0] = [str(part) for part in find_stopped(lake.table, now)]
        answers["notes"] += tell_behind(lake, window)
        judged = checks(limits, answers)
        answers["thresholds"] = [check.as_json() for check in judged]
        if html is not None:
            # Charts: a second that the other forms do not need.
            from reliable_channel.analysis.dashboard import report_page

            write_whole(html, report_page.render(source, answers, judged))
        if csv is not None:
            csv_files.write(answers, csv)
        if as_json:
            typer.echo(json.dumps(answers["missing"] if missing else answers, indent=1, ensure_ascii=True))
        elif missing:
            console = Console(width=None if sys.stdout.isatty() else 160)
            terminal.render_missing(console, answers)
        else:
            terminal.render(Console(width=None if sys.stdout.isatty() else 120), answers, judged)
        for path in filter(None, (html, csv)):
            typer.echo(f"Written: {path}", err=True)
        if any(check.crossed for check in judged):
            raise typer.Exit(CROSSED)


def describe_messages(lake: TableSnapshot, name: str, as_json: bool) -> str:
    """Everything that is known about the messages of this name (:func:`find_judged`), one fact a line."""
    import json

    from reliable_channel.analysis import text
    from reliable_channel.analysis.report.investigate import find_judged
    from reliable_channel.cli.commands.sql import cell, plain

    rows = []
    for message in find_judged(lake, name):
        # The whole key as equalities, one message at a time: only these pass through the view to the tables.
        key = {"message_key": message.message_key, **message.channel.parameters}
        sql = f"SELECT * FROM {{}} WHERE message_key = $message_key AND {message.channel.where()}"  # noqa: S608 - values are bound
        for row in lake.select(sql.format("messages"), key):
            row["acknowledged_at"] = row["acknowledged_at"] and dict(sorted(row["acknowledged_at"]))
            row["node_logs"] = _describe_logs(lake.select(sql.format("message_logs") + " ORDER BY vantage", key))
            rows.append(row)
    if as_json:
        return json.dumps([plain(row) for row in rows], indent=1)
    facts = [
        "\n".join(f"{key:20} {text.printable(cell(value), 2000)}" for key, value in row.items() if value is not None)
        for row in rows
    ]
    return "\n\n".join(facts)


def _describe_logs(logs: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """What the logs of nodes show of a message, a sentence for each; ``None`` if no log covers its time."""
    if logs and not any(log["logged"] for log in logs):
        return [f"sent, but seen by no log: {', '.join(log['vantage'] for log in logs)}"]
    return [
        f"{log['vantage']}: {log['logged']} of {log['envelopes']} envelopes ({', '.join(log['did'] or ['none'])})"
        for log in logs
    ] or None


def parse_window(
    since: str | None, until: str | None, channel: str | None, content_topic: str | None, now: dt.datetime
) -> Window:
    """The window of the options. Raises ``LocalError`` for what is no time, or an end that is before its beginning."""
    from reliable_channel.analysis.report.source import Window
    from reliable_channel.analysis.report.times import moment
    from reliable_channel.core.errors import LocalError

    first, last = (None if text is None else moment(text, now) for text in (since, until))
    if first is not None and last is not None and first >= last:
        raise LocalError(f"--from {first:%Y-%m-%d %H:%M} is not before --to {last:%Y-%m-%d %H:%M}.", "Swap them.")
    return Window(first, last, channel, content_topic)


def write_whole(path: Path, page: str | bytes) -> None:
    """Write a file, whole or not at all. Raises ``EnvironmentFault`` when the disk refuses."""
    from reliable_channel.core.errors import EnvironmentFault

    fresh = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(page.encode() if isinstance(page, str) else page)
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):  # on a full disk
            fresh.unlink()
        raise EnvironmentFault(f"{path} cannot be written: {error.strerror}.", "Choose another place.") from error

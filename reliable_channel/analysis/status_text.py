"""Prints the state of the pipeline: :func:`reliable_channel.analysis.status.collect` as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reliable_channel.analysis.text import pluralize, printable


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report as lines."""
    return [
        *[f"{one['part']} STOPPED: nothing since {one['since']}. {one['effect']}" for one in report["stopped"]],
        f"Tables under {report['data_dir']}",
        *_align(
            [("table", "rows", "files", "MiB", "version", "last write")]
            + [
                (
                    table["name"],
                    f"{table['rows']:,}",
                    f"{table['files']:,}",
                    f"{table['bytes'] / 2**20:,.1f}",
                    str(table["version"]),
                    table["last_write"] or "never",
                )
                for table in report["tables"]
            ]
        ),
        "",
        "Jobs",
        *[f"  {line}" for job in report["jobs"] for line in _format_job(job)],
        *(
            [f"  no job has started yet with checkpoints under {report['checkpoint_dir']}"]
            if not report["jobs"]
            else []
        ),
        "",
        "Waiting",
        f"  {pluralize(report['open_sets']['count'], 'open sets')} of segments"
        + (f", next timer {report['open_sets']['next_due']}" if report["open_sets"]["next_due"] else ""),
        f"  {_format_missing(report['missing_dependencies'])}",
        "",
        "Quarantine",
        *[f"  {printable(reason)}: {count:,}" for reason, count in report["quarantine"].items()],
        *(["  empty"] if not report["quarantine"] else []),
    ]


def _format_job(job: Mapping[str, Any]) -> list[str]:
    state = "has not finished a micro-batch" if job["micro_batch"] is None else f"micro-batch {job['micro_batch']}"
    when = f" of {job['at']}" if job["at"] else ""
    again = "; the next one runs, or was interrupted and runs again at the next start" if job["interrupted"] else ""
    return [
        f"{printable(job['job'])}: {state}{when}{again}",
        *[f"  {_format_source(source)}" for source in job["sources"]],
    ]


def _format_source(source: Mapping[str, Any]) -> str:
    name, behind = printable(source["source"]), source["behind"]
    if behind is None and not source.get("commits"):
        return f"{name}: lag unknown"
    if not behind and not source.get("commits"):
        return f"{name}: nothing left to read"
    unit = source["unit"] if behind is not None else "commits"
    count = pluralize(source["commits"] if behind is None else behind, unit)
    least, earlier = ("at least ", " or earlier") if source.get("at_least") else ("", "")
    return f"{name}: {least}{count} behind" + (f", since {source['since']}{earlier}" if source.get("since") else "")


def _format_missing(missing: Mapping[str, Any]) -> str:
    if not missing["count"]:
        return "no dependency is missing"
    oldest = missing["oldest"]
    return (
        f"missing dependencies: {missing['count']:,}, the oldest {printable(oldest['sds_id'])} of channel "
        f"{printable(oldest['channel_id'])} on {printable(oldest['content_topic'])}, asked for since "
        f"{oldest['asked_since']}"
    )


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(w) if n in (0, 5) else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

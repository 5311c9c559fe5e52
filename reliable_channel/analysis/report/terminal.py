"""Prints the report on a terminal. Strings from the network are shown as text, never as markup or control sequences."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from reliable_channel.analysis import text
from reliable_channel.analysis.report import layout
from reliable_channel.analysis.report.thresholds import Check

MOST_ROWS = 15
WIDE, NARROW = 160, 100
MANY_COLUMNS = 10
LONGEST_HEADING = 9
BY_ID = "report --message ID shows everything known about one of them"


def render(console: Console, report: dict[str, Any], checks: list[Check]) -> None:
    """Print the whole report: the headline, every section that has rows, notes, thresholds."""
    console.print(Text(f"Delivery report: {layout.window(report)}", style="bold"), soft_wrap=True)
    boxes = [Text.assemble((value, "bold"), f" {what}") for what, value in layout.headline(report)]
    console.print(Columns(boxes, padding=(0, 3)))
    if report["conclusion"]:
        console.print(Text(report["conclusion"], style="bold"), soft_wrap=True)
    silent = []
    for section in layout.SECTIONS:
        rows = report[section.key]
        if rows:
            console.print(Text(f"\n{section.title}", style="bold"))
            console.print(_make_table(section, rows, console.width))
            left_out = report["left_out"].get(section.key, 0)
            more = len(rows[MOST_ROWS:]) + left_out
            if more:
                have = f"the first {len(rows):,}" if left_out else "them"
                console.print(Text(f"and {more:,} more; --json and --csv have {have}", style="dim"))
            if section.key == "missing":
                console.print(Text(BY_ID, style="dim"))
        else:
            silent.append(section.empty)
    # Without a known message the sentences about empty sections are left out.
    for note in [
        *report["notes"],
        *(silent if report["totals"]["messages"] or report["totals"]["delivered_rows"] else []),
    ]:
        console.print(Text(f"• {note}"), soft_wrap=True)
    for check in checks:
        console.print(Text(layout.check(check), style="bold red" if check.crossed else "green"), soft_wrap=True)


def render_missing(console: Console, report: dict[str, Any]) -> None:
    """Print every missing message that the report holds, and how many there are."""
    section = next(one for one in layout.SECTIONS if one.key == "missing")
    rows = report["missing"]
    if rows:
        console.print(_make_table(section, rows, console.width, len(rows)))
    more = report["totals"]["missing"] - len(rows)
    count = f"{report['totals']['missing']:,} of {report['totals']['messages']:,} messages are missing"
    if rows:
        console.print(Text(BY_ID, style="dim"))
    console.print(Text(f"{count}{f'; the newest {len(rows):,} are shown' if more > 0 else ''}", style="bold"))
    for note in report["notes"]:
        console.print(Text(f"• {note}"), soft_wrap=True)


def _make_table(section: layout.ReportSection, rows: list[dict[str, Any]], width: int, most: int = MOST_ROWS) -> Table:
    narrow = width < NARROW
    columns = [column for column in section.columns if width >= WIDE or not column.wide]
    is_tight = narrow or len(columns) > MANY_COLUMNS
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0) if is_tight else (0, 1))
    for column in columns:
        justify: JustifyMethod = "right" if column.right else "left"
        heading = column.heading
        if column.right and column.write is not text.time:  # rich breaks no heading of a column that must not be broken
            heading = "\n".join(textwrap.wrap(heading, LONGEST_HEADING, break_long_words=False))
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=column.right)
    for row in rows[:most]:
        table.add_row(*(Text(_write_cell(column, row[column.key], narrow)) for column in columns))
    return table


def _write_cell(column: layout.ReportColumn, value: Any, narrow: bool) -> str:
    if narrow and column.write is text.name:
        return text.name(value, 12)
    return column.write(value)[5:] if narrow and column.write is text.time else column.write(value)

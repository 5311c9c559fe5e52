"""Writes the sections of the report as CSV files that a spreadsheet opens without executing anything."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from reliable_channel.analysis.report.summary import SECTIONS
from reliable_channel.core.errors import EnvironmentFault

_FORMULA = re.compile("(^|;)( *[=+@＝＋－＠-])")


def safe(value: Any) -> Any:
    """A cell that no spreadsheet interprets as a formula. Numbers stay numbers; characters that do not print become
    spaces."""
    if not isinstance(value, str):
        return value
    # Strangers choose names, and a spreadsheet runs what begins like a formula, also in quotes and after spaces (OWASP,
    # *CSV Injection*). Where commas are decimal, it takes a semicolon for the end of a cell.
    return _FORMULA.sub(r"\1'\2", "".join(c if c.isprintable() else " " for c in value))


def write(report: dict[str, Any], directory: Path) -> None:
    """One file for every section that has rows, quoted throughout, and none, also no older one, for the others. Raises
    :class:`EnvironmentFault` when the disk refuses."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in SECTIONS:
            rows: list[dict[str, Any]] = report[name]
            if not rows:
                (directory / f"{name}.csv").unlink(missing_ok=True)
                continue
            with (directory / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, quoting=csv.QUOTE_ALL)
                writer.writerow(rows[0])
                writer.writerows([safe(value) for value in row.values()] for row in rows)
    except OSError as error:
        raise EnvironmentFault(
            f"The CSV files cannot be written to {directory}: {error.strerror}.", "Choose another place with --csv."
        ) from error

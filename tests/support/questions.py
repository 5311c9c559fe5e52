"""docs/questions.md as values: every question with its SQL per engine and the columns that its answer promises.

``python -m tests.support.questions`` writes the sample answers of the page anew, from the tables of
:mod:`tests.support.sample_tables`.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.cli.commands.sql import as_table
from reliable_channel.config import PathSettings
from tests.support.sample_tables import story, write

SAMPLE_ROWS = 4
LONGEST = 30
"""Characters of a value in a sample answer."""
POLITE = {"talk", "files", "sealed", "quiet"}
PAGE = Path(__file__).parents[2] / "docs" / "questions.md"


@dataclass(frozen=True)
class Question:
    """One section of the page. ``spark`` and ``duckdb`` are the same text where one serves both."""

    title: str
    spark: str
    duckdb: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return self.title


def questions() -> list[Question]:
    """All questions of the page, in order."""
    result = []
    for section in re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        sql = re.findall(r"```sql\n(.*?)```", body, re.DOTALL)
        answer = body.split("Answer:", 1)[1].split(".", 1)[0]
        columns = tuple(re.findall(r"`(\w+)`", answer.split(":", 1)[1]))
        result.append(Question(title, sql[0], sql[-1], columns))
    return result


def with_sample_answers(page: str, lake: TableSnapshot) -> str:
    """The page with the first rows of every answer at the end of its section, instead of those that stand there."""
    sql_by_title = {question.title: question.duckdb for question in questions()}

    def section(match: re.Match[str]) -> str:
        text = re.sub(r"\n```text\n.*?```\n", "", match[0], flags=re.DOTALL).rstrip()
        return f"{text}\n\n```text\n{sample_answer(sql_by_title[match[1]], lake)}\n```\n\n"

    return re.sub(r"^### (\d+\. [^\n]+)\n.*?(?=^##)", section, page, flags=re.MULTILINE | re.DOTALL)


def sample_answer(sql: str, lake: TableSnapshot) -> str:
    """The first rows as ``reliable-channel sql`` prints them, long values cut, and how many there are."""
    rows = lake.arrow(sql)
    columns = [
        [f"{value[: LONGEST - 1]}…" if isinstance(value, str) and len(value) > LONGEST else value for value in column]
        for column in rows.slice(0, SAMPLE_ROWS).to_pydict().values()
    ]
    first = pa.table(columns, names=rows.column_names)
    lines = [line.rstrip() for line in as_table(first).splitlines()[:-1]]
    return "\n".join([*lines, f"({rows.num_rows} {'row' if rows.num_rows == 1 else 'rows'})"])


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of either engine in one form: numbers as rounded floats, times in UTC, bytes as hex; in any order."""
    return sorted(repr({name: _plain(value) for name, value in row.items()}) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return round(float(value), 3)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def write_polite(place: Path) -> TableSnapshot:
    """The sample tables without the channels of hostile names, which would fill every answer."""
    a_story = story()
    a_story.rows.update(
        {
            table: [row for row in rows if row.get("channel_id") is None or row["channel_id"] in POLITE]
            for table, rows in a_story.rows.items()
        }
    )
    write(place, a_story)
    return TableSnapshot(PathSettings(data_dir=str(place)))


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        answers = with_sample_answers(PAGE.read_text(encoding="utf-8"), write_polite(Path(directory)))
    PAGE.write_text(answers, encoding="utf-8")

"""docs/questions.md as values: every question with its SQL per engine and the columns that its answer promises."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

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
    found = []
    for section in re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        sql = re.findall(r"```sql\n(.*?)```", body, re.DOTALL)
        answer = body.split("Answer:", 1)[1].split(".", 1)[0]
        columns = tuple(re.findall(r"`(\w+)`", answer.split(":", 1)[1]))
        found.append(Question(title, sql[0], sql[-1], columns))
    return found


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

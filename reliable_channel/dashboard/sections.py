"""Parts of a page that stand or fall alone: a table that is missing or unreadable empties its part, not the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reliable_channel.errors import EnvironmentFault
from reliable_channel.pipeline.tables import BY_NAME
from reliable_channel.report.lake import Lake

PAGE_ROWS = 50


@dataclass(frozen=True)
class Section:
    """``data``: what the template shows; ``fault``: why there is none. ``absent``: tables that do not exist yet, with
    the job that writes each."""

    data: Any = None
    fault: EnvironmentFault | None = None
    absent: tuple[tuple[str, str], ...] = ()


def section(lake: Lake, tables: Sequence[str], make: Callable[[], Any]) -> Section:
    """What ``make`` asks of these tables."""
    try:
        absent = tuple((name, BY_NAME[name].writer) for name in tables if lake.table(name) is None)
        return Section(make(), absent=absent)
    except EnvironmentFault as fault:
        return Section(fault=fault)


@dataclass(frozen=True)
class Rows:
    """One page of rows. ``more``: whether there is a next one."""

    rows: list[dict[str, Any]]
    page: int = 1
    more: bool = False

    @staticmethod
    def of(lake: Lake, sql: str, parameters: dict[str, Any], page: int = 1, per_page: int = PAGE_ROWS) -> Rows:
        """The rows of ``sql`` from ``page`` on: one more than is shown is asked for, so nothing is counted."""
        bounds = {"limit": per_page + 1, "offset": (page - 1) * per_page}
        found = lake.select(f"{sql} LIMIT $limit OFFSET $offset", {**parameters, **bounds})
        return Rows(found[:per_page], page, len(found) > per_page)

"""Builds the sections of a page independently: a missing or unreadable table empties its section, not the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.tables import BY_NAME

PAGE_ROWS = 50


@dataclass(frozen=True)
class PageSection:
    """``data``: the data of the template; ``fault``: why there is none. ``absent``: tables that do not exist yet, with
    the job that writes each."""

    data: Any = None
    fault: EnvironmentFault | None = None
    absent: tuple[tuple[str, str], ...] = ()


def section(lake: TableSnapshot, tables: Sequence[str], make: Callable[[], Any]) -> PageSection:
    """Query these tables with ``make``; a missing or unreadable table gives an empty section with its reason."""
    try:
        absent = tuple((name, BY_NAME[name].writer) for name in tables if lake.dataset(name) is None)
        return PageSection(make(), absent=absent)
    except EnvironmentFault as fault:
        return PageSection(fault=fault)


@dataclass(frozen=True)
class Rows:
    """One page of rows. ``more``: whether there is a next one."""

    rows: list[dict[str, Any]]
    page: int = 1
    more: bool = False

    @staticmethod
    def of(lake: TableSnapshot, sql: str, parameters: dict[str, Any], page: int = 1, per_page: int = PAGE_ROWS) -> Rows:
        """The rows of ``sql`` from ``page`` on: one more than is shown is asked for, so nothing is counted."""
        bounds = {"limit": per_page + 1, "offset": (page - 1) * per_page}
        selected = lake.select(f"{sql} LIMIT $limit OFFSET $offset", {**parameters, **bounds})
        return Rows(selected[:per_page], page, len(selected) > per_page)

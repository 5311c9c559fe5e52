"""The page on security names every limit of the configuration, every level of evidence, and no setting or table that
is not there."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from reliable_channel.config import Settings
from reliable_channel.core.sds.events import Evidence
from reliable_channel.lake.tables import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
LIMIT = re.compile(r"(^|_)max_|limit$|tolerance|^quotas\.|^timeout_for_lost|channel_expiry|quarantine_raw")
NO_LIMITS = {"rate_limit"}


def settings_of(section: type[Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings."""
    names = section.model_fields if issubclass(section, BaseModel) else [f.name for f in dataclasses.fields(section)]
    hints = typing.get_type_hints(section)
    for name in names:
        kinds = [hints[name], *typing.get_args(hints[name])]
        inner = [k for k in kinds if isinstance(k, type) and (dataclasses.is_dataclass(k) or issubclass(k, BaseModel))]
        if inner:
            yield from settings_of(inner[0], f"{prefix}{name}.")
        else:
            yield prefix + name


def limits() -> set[str]:
    return {
        name for name in settings_of(Settings) if name.startswith("quotas.") or LIMIT.search(name.rsplit(".", 1)[-1])
    } - NO_LIMITS


def test_every_limit_is_named_and_every_named_setting_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", PAGE))
    assert len(limits()) > 50
    assert {name for name in limits() if not named & {name, name.rpartition(".")[0]}} == set()
    known = set(settings_of(Settings))
    known |= {name.rpartition(".")[0] for name in known}
    assert {name for name in named if name.split(".")[0] in Settings.model_fields} <= known


def test_every_level_of_evidence_is_explained() -> None:
    for evidence in Evidence:
        assert f"| `{evidence.certainty.value}` | `{evidence.value}` |" in PAGE


def test_the_tables_that_are_spoken_of_exist() -> None:
    section = PAGE.split("## What each table may be believed for")[1].split("### ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    tables = {name for cell in first_cells for name in re.findall(r"`([a-z_]+)`", cell)}
    assert tables <= {table.name for table in TABLES}
    assert len(tables) > 12

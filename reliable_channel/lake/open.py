"""Opens Delta tables through delta-rs, without Spark, pandas or Arrow's data sets, which load slowly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.tables import BY_NAME, Table


def open_table(paths: PathSettings, table: Table) -> DeltaTable:
    """A table through delta-rs, without Spark. Raises ``EnvironmentFault`` when it does not exist."""
    try:
        return DeltaTable(paths.table(table.name))
    except TableNotFoundError:
        raise EnvironmentFault(
            f"The table {table.name} does not exist under {paths.data_dir}.", "Run the pipeline first."
        ) from None


def exists(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists."""
    try:
        open_table(paths, table)
    except EnvironmentFault:
        return False
    return True


def found_as(paths: PathSettings, table: Table) -> Table | None:
    """The table under the name it has here: its own, or that of an earlier version; ``None`` when it does not exist."""
    names = [table.name, *([table.former_name] if table.former_name else [])]
    return next((named for name in names if exists(paths, named := replace(table, name=name))), None)


def holds_rows(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists and has a file with rows."""
    return exists(paths, table) and len(open_table(paths, table).file_uris()) > 0


def rows_in(table: DeltaTable) -> int:
    """How many rows a table has, by the statistics of its files."""
    return sum(rows or 0 for rows in table.get_add_actions(flatten=True).column("num_records").to_pylist())


def open_tables(paths: PathSettings) -> dict[str, DeltaTable]:
    """The tables that exist, by name, in the order of the data flow."""

    def opened(name: str) -> DeltaTable | None:
        try:
            return DeltaTable(paths.table(name))
        except TableNotFoundError:
            return None

    with ThreadPoolExecutor(8) as pool:
        return {name: t for name, t in zip(BY_NAME, pool.map(opened, BY_NAME), strict=True) if t is not None}

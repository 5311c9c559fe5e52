"""``reliable-channel sql``: questions in SQL over the tables, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reliable_channel.cli.commands import TablesOption, read_settings

if TYPE_CHECKING:
    import pyarrow as pa

    from reliable_channel.analysis.report.snapshot import TableSnapshot

PROMPT, MORE = "sql> ", "...> "
HELP = "End a question with ;  Tab completes, \\d lists the tables, \\d NAME the columns of one, \\q or Ctrl-D leaves."
KEYWORDS = ("DESCRIBE", "FROM", "GROUP BY", "HAVING", "JOIN", "LIMIT", "ORDER BY", "SELECT", "SHOW TABLES", "WHERE")


Form = Literal["table", "json", "csv"]
"""How the rows are printed."""


def register(app: typer.Typer) -> None:
    @app.command()
    def sql(
        context: typer.Context,
        question: Annotated[
            str | None, typer.Argument(metavar="[SELECT]", help="The query; without it, a prompt with a history.")
        ] = None,
        form: Annotated[Form, typer.Option("--format", help="How the rows are printed.")] = "table",
        as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
        max_seconds: Annotated[float, typer.Option(min=0.1, max=1e6, metavar="SECONDS", help="Time limit.")] = 60.0,
        tables: TablesOption = None,
    ) -> None:
        """Query the tables in SQL (DuckDB's dialect). Needs no Spark and changes nothing.

        Tables have the names of reliable-channel tables list (docs/tables.md). Times are UTC.
        Exit codes: 0 answered, 1 there are no tables, 2 wrong usage.

        For example: reliable-channel sql "SELECT channel_id, cause, count(*) FROM delivery_status GROUP BY ALL"
        """
        from reliable_channel.analysis.report.snapshot import TableSnapshot

        lake = TableSnapshot(read_settings(context, tables).paths, max_seconds)
        lake.require_any()
        form = "json" if as_json else form
        if question is not None:
            answer(lake, question, form)
        else:
            prompt(lake, form)


def answer(lake: TableSnapshot, question: str, form: Form) -> None:
    """Print the rows of a query over the newest versions of the tables, and which of them do not exist yet. Raises as
    ``TableSnapshot.ask``."""
    from reliable_channel.core.errors import LocalError

    lake = lake.newest()
    rows = lake.ask(question)
    try:
        typer.echo(format_rows(rows, form))
    except OverflowError as error:  # a date that DuckDB has and Python does not
        raise LocalError(f"The answer cannot be printed: {error}.", "Cast this column to VARCHAR.") from None
    if absent := lake.absent():
        one = len(absent) == 1
        typer.echo(
            f"{', '.join(absent)} {'does' if one else 'do'} not exist yet under {lake.data_dir}, so"
            f" {'it has' if one else 'they have'} no rows: `reliable-channel run --verdicts` makes"
            f" {'it' if one else 'them'}.",
            err=True,
        )


def format_rows(rows: pa.Table, form: Form) -> str:
    """The rows as text. Strings from the network are shown as text, never as control sequences."""
    if form == "json":
        import json

        return json.dumps([{k: plain(v) for k, v in row.items()} for row in rows.to_pylist()], indent=1)
    if form == "csv":
        import csv
        import io

        from reliable_channel.analysis.report.csv_files import safe

        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([safe(name) for name in rows.column_names])
        writer.writerows(csv_row(row) for row in rows.to_pylist())
        return out.getvalue().rstrip("\n")
    return as_table(rows)


def csv_row(row: dict[str, Any]) -> list[Any]:
    """The cells of a row. Numbers stay as they are, whole and also negative ones; everything else is text that no
    spreadsheet runs and no terminal obeys."""
    from decimal import Decimal

    from reliable_channel.analysis.report.csv_files import safe

    return [value if isinstance(value, int | float | Decimal) else safe(cell(value)) for value in row.values()]


def as_table(rows: pa.Table) -> str:
    """The rows as a table with its number of rows below."""
    import io
    import sys

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from reliable_channel.analysis.text import name

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for field in rows.schema:
        number = any(word in str(field.type) for word in ("int", "double", "float", "decimal"))
        table.add_column(Text(name(field.name)), justify="right" if number else "left", overflow="fold")
    for row in rows.to_pylist():
        table.add_row(*(Text(name(cell(value), 200)) for value in row.values()))
    out = io.StringIO()
    Console(file=out, width=None if sys.stdout.isatty() else 160).print(table)
    noun = "row" if rows.num_rows == 1 else "rows"
    return f"{out.getvalue()}({rows.num_rows} {noun})"


def plain(value: Any) -> Any:
    """A value in JSON types: times in ISO 8601, bytes in hex, null for a number that JSON does not have (NaN)."""
    import math
    from decimal import Decimal

    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # a map, as Arrow gives it
            return {cell(key): plain(inner) for key, inner in value}
        return [plain(inner) for inner in value]
    if isinstance(value, Decimal):  # a sum of whole numbers, too
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else cell(value)


def cell(value: Any) -> str:
    """A value as text: nothing for NULL, bytes in hex, times to the millisecond, with a Z in UTC; a time that a query
    has moved to another zone has none."""
    import datetime as dt

    match value:
        case None:
            return ""
        case bytes():
            return value.hex()
        case dt.datetime():
            return value.replace(tzinfo=None).isoformat(" ", "milliseconds") + ("Z" if value.tzinfo else "")
        case list() | dict():
            import json

            return json.dumps(plain(value), ensure_ascii=False)
        case float():
            return f"{value:.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.6g}"
        case _:
            return str(value)


def prompt(lake: TableSnapshot, form: Form) -> None:
    """Run queries until the end of the input. Each reads the newest tables; a fault is printed and the prompt
    continues. Ctrl-C gives up the query that runs."""
    import sys

    from reliable_channel.core.errors import ReliableChannelError
    from reliable_channel.core.printable import escape_unprintable

    interactive = sys.stdin.isatty()
    if interactive:
        remember_lines()
        typer.echo(HELP)
    question = ""
    while (line := read_line((MORE if question else PROMPT) if interactive else "")) is not None:
        if not question and line.strip() in ("\\q", "quit", "exit"):
            return
        if not question and line.strip().startswith("\\d"):
            typer.echo(describe(line.strip()[2:].strip()))
            continue
        question = f"{question}\n{line}".strip()
        if question.endswith(";"):
            try:
                answer(lake, question, form)
            except ReliableChannelError as fault:
                typer.echo(escape_unprintable(str(fault)), err=True)
            except KeyboardInterrupt:
                typer.echo("Stopped.", err=True)
            question = ""
    if question:
        answer(lake, question, form)


def read_line(label: str) -> str | None:
    """The next line, ``None`` at the end of the input. Ctrl-C gives up the line."""
    try:
        return input(label)
    except EOFError:
        return None
    except KeyboardInterrupt:
        typer.echo()
        return ""


def remember_lines() -> None:
    """Line editing, completion, and a history in the user's state directory, kept when the prompt ends."""
    import atexit
    import os
    import readline
    from contextlib import suppress
    from pathlib import Path

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,;()=<>.")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "reliable-channel" / "sql_history"
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(file)

    def keep() -> None:
        with suppress(OSError):
            readline.set_history_length(1_000)
            readline.write_history_file(file)

    atexit.register(keep)


def complete(word: str, state: int) -> str | None:
    """The name of a table or column, or the keyword, number ``state`` of those that begin with ``word``."""
    from reliable_channel.lake.tables.views import QUERYABLE

    names = sorted({name for kind in QUERYABLE.values() for name in (kind.name, *kind.names())})
    matches = [name for name in names if name.startswith(word)]
    matches += [key if word.isupper() else key.lower() for key in KEYWORDS if key.startswith(word.upper())]
    return [*matches, None][state] if state <= len(matches) else None


def describe(name: str) -> str:
    """The tables and views, or the columns of one with what they mean."""
    from reliable_channel.lake.tables.views import QUERYABLE

    if not name:
        return "\n".join(f"{one.name:24} {one.comment}" for one in QUERYABLE.values())
    one = QUERYABLE.get(name.rstrip(";"))
    if one is None:
        return f"There is no table {name}; \\d lists them."
    return "\n".join(f"{column.name:24} {column.type:14} {column.comment}" for column in one.columns)

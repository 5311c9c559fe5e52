"""``reliable-channel tables list``: the tables and views with their columns."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    tables = typer.Typer(help="The Delta tables: names, columns, keys.", no_args_is_help=True)
    app.add_typer(tables, name="tables")

    @tables.command(name="list")
    def list_(
        as_json: Annotated[bool, typer.Option("--json", help="A JSON list with columns instead of text.")] = False,
    ) -> None:
        """One line per table and view: name and what it holds."""
        import json

        from reliable_channel.lake.tables.views import QUERYABLE

        if as_json:
            entries = [
                {
                    "name": table.name,
                    "comment": table.comment,
                    "columns": [{"name": c.name, "type": c.type, "comment": c.comment} for c in table.columns],
                }
                for table in QUERYABLE.values()
            ]
            typer.echo(json.dumps(entries, indent=1))
            return
        for table in QUERYABLE.values():
            typer.echo(f"{table.name:20} {table.comment}")

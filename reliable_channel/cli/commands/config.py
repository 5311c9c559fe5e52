"""``reliable-channel config show``: the effective configuration, secrets masked."""

from __future__ import annotations

import typer

from reliable_channel.cli.commands import invocation


def register(app: typer.Typer) -> None:
    config = typer.Typer(help="The configuration in effect.", no_args_is_help=True)
    app.add_typer(config, name="config")

    @config.callback()
    def _group() -> None:
        """The configuration in effect."""

    @config.command()
    def show(context: typer.Context) -> None:
        """Print the effective configuration as YAML: defaults, file and environment together, secrets masked."""
        typer.echo(invocation(context).settings().to_yaml(), nl=False)

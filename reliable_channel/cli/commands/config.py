"""``reliable-channel config``: the effective configuration, secrets masked."""

from __future__ import annotations

import typer

from reliable_channel.cli.commands import JsonOption, read_settings


def register(app: typer.Typer) -> None:
    config = typer.Typer(help="The effective configuration.", no_args_is_help=True)
    app.add_typer(config, name="config")

    @config.command()
    def show(context: typer.Context, as_json: JsonOption = False) -> None:
        """Print the effective configuration as YAML: defaults, file and environment together, secrets masked."""
        import json

        settings = read_settings(context)
        typer.echo(json.dumps(settings.as_values(), indent=1) + "\n" if as_json else settings.to_yaml(), nl=False)

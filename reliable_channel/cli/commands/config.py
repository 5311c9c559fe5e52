"""``reliable-channel config``: the effective configuration, secrets masked, and the files that come with it."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.cli.commands import JsonOption, invocation, list_files, place_of


def register(app: typer.Typer) -> None:
    config = typer.Typer(help="The effective configuration.", no_args_is_help=True)
    app.add_typer(config, name="config")

    @config.callback()
    def _group() -> None:
        """The effective configuration."""

    @config.command()
    def show(context: typer.Context, as_json: JsonOption = False) -> None:
        """Print the effective configuration as YAML: defaults, file and environment together, secrets masked."""
        import json

        settings = invocation(context).settings()
        typer.echo(json.dumps(settings.as_values(), indent=1) + "\n" if as_json else settings.to_yaml(), nl=False)

    @config.command("list")
    def list_(as_json: JsonOption = False) -> None:
        """The files that come with this package: configurations, alert rules, the Grafana board."""
        list_files("conf", "*.*", as_json)

    @config.command()
    def path(
        name: Annotated[str, typer.Argument(help="Such as grafana-dashboard.json; without: the folder.")] = "",
    ) -> None:
        """Print where a file that comes with this package is: configurations, alert rules, the Grafana board."""
        typer.echo(place_of("conf", name))

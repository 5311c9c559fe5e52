"""``reliable-channel alerts``: evaluate the rules, and show what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.cli.commands import TablesOption, read_settings

if TYPE_CHECKING:
    from reliable_channel.analysis.alerts.check import CheckResult

RAISED_EXIT_CODE = 3


def register(app: typer.Typer) -> None:
    alerts = typer.Typer(help="Alerts by the rules of conf/alerts.yaml.", no_args_is_help=True)
    app.add_typer(alerts, name="alerts")

    @alerts.command()
    def check(
        context: typer.Context,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
        fail: Annotated[
            bool, typer.Option("--fail", help="Exit with 3 while an alert is raised or none can be.")
        ] = False,
        tables: TablesOption = None,
    ) -> None:
        """Evaluate the rules over the tables, record the changes and send them to the webhook. Needs no Spark."""
        import json

        from reliable_channel.analysis.alerts.check import check as run
        from reliable_channel.analysis.alerts.text import as_values, lines

        outcome: CheckResult = run(read_settings(context, tables))
        typer.echo(json.dumps(as_values(outcome), indent=1) if as_json else "\n".join(lines(outcome)))
        if outcome.fault is not None:
            raise outcome.fault
        if fail and (outcome.open_alerts or outcome.stopped):
            raise typer.Exit(RAISED_EXIT_CODE)

    @alerts.command()
    def rules(
        context: typer.Context,
        as_json: Annotated[bool, typer.Option("--json", help="A JSON list instead of text.")] = False,
    ) -> None:
        """Check the rules file and print one line per rule."""
        import json

        from reliable_channel.analysis.alerts.rules import load_rules

        loaded = load_rules(read_settings(context).alerts.rules)
        if as_json:
            typer.echo(json.dumps([rule.model_dump(mode="json") for rule in loaded], indent=1))
            return
        for rule in loaded:
            typer.echo(f"{rule.alert:24} {rule.kind:20} above {rule.threshold:<12g} {rule.severity}")

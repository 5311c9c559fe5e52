"""``reliable-channel status``: the state of the pipeline, in under two seconds, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.cli.commands import TablesOption, read_settings

if TYPE_CHECKING:
    from reliable_channel.config import Settings


def register(app: typer.Typer) -> None:
    @app.command()
    def status(
        context: typer.Context,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
        kafka: Annotated[bool, typer.Option(help="Ask Kafka how far ingest is behind.")] = True,
        tables: TablesOption = None,
    ) -> None:
        """Show tables, lag per job, open sets, quarantine and missing dependencies. Needs no Spark and no broker.

        Rows are those of the files: in sds_messages and ordered_sds_messages with the rows of the
        recorded clock, which only the jobs read.

        Exit codes: 0 shown, 1 there are no tables."""
        import json

        from reliable_channel.analysis.status import collect
        from reliable_channel.analysis.status_text import lines
        from reliable_channel.lake.read import no_tables_fault

        settings = read_settings(context, tables)
        report = collect(settings, (lambda topic: newest_offsets(settings, topic)) if kafka else None)
        if as_json or report["tables"]:
            typer.echo(json.dumps(report, indent=1) if as_json else "\n".join(lines(report)))
        if not report["tables"]:
            raise no_tables_fault(report["data_dir"])


def newest_offsets(settings: Settings, topic: str) -> Mapping[int, int]:
    """Partition → the offset that its next record will get. Raises as :func:`describe_topic`."""
    from reliable_channel.runtime.logs import quiet_kafka_client
    from reliable_channel.runtime.own_broker import check_kafka
    from reliable_channel.transport.kafka_consumer import describe_topic

    check_kafka(settings)
    with quiet_kafka_client():
        return describe_topic(settings.kafka.clients(), topic, with_ends=True).ends

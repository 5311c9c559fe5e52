"""``reliable-channel kafka start|stop|status|topics``: the development broker, and the topics on any cluster."""

from __future__ import annotations

import typer

from reliable_channel.cli.commands import JsonOption, read_settings


def register(app: typer.Typer) -> None:
    kafka = typer.Typer(help="The development broker on loopback, and the topics.", no_args_is_help=True)
    app.add_typer(kafka, name="kafka")

    @kafka.command()
    def start(context: typer.Context) -> None:
        """Start the broker unless it runs; returns when a client can produce."""
        from reliable_channel.core.errors import ConfigurationError
        from reliable_channel.runtime import broker, jars

        settings = read_settings(context)
        if settings.kafka.bootstrap_servers is not None:
            raise ConfigurationError(
                f"kafka.bootstrap_servers is {settings.kafka.bootstrap_servers}: an existing cluster is in use.",
                "Unset it to run the development broker.",
            )
        jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
        pid = broker.start(settings)
        typer.echo(f"Kafka runs at {settings.kafka.servers} (pid {pid}, state in {broker.files(settings).home})")

    @kafka.command()
    def stop(context: typer.Context) -> None:
        """Stop the broker and wait for its end; its data stays."""
        from reliable_channel.runtime import broker

        typer.echo("Kafka stopped" if broker.stop(read_settings(context)) else "Kafka was not running")

    @kafka.command()
    def status(context: typer.Context, as_json: JsonOption = False) -> None:
        """Show whether the broker runs and serves; exit code 3 when it does not run, 1 when it does not serve."""
        import json

        from reliable_channel.runtime import broker
        from reliable_channel.runtime.topics import probe

        settings = read_settings(context)
        servers, log = f"127.0.0.1:{settings.kafka.broker.port}", str(broker.files(settings).log)
        pid = broker.running_pid(broker.files(settings))
        serves = pid is not None and probe(settings.kafka.model_copy(update={"bootstrap_servers": None}), 10.0)
        if as_json:
            fields = {"running": pid is not None, "serves": serves, "pid": pid, "servers": servers, "log": log}
            typer.echo(json.dumps(fields, indent=1))
        elif pid is None:
            typer.echo("Kafka is not running")
        else:
            state = "" if serves else f" but does not serve: read {log}"
            typer.echo(f"Kafka runs at {servers} (pid {pid}){state}")
        if not serves:
            raise typer.Exit(3 if pid is None else 1)

    @kafka.command()
    def topics(context: typer.Context, as_json: JsonOption = False) -> None:
        """Create the topics that do not exist, on the configured cluster, and list them, with settings of existing ones
        that are not as they need to be; exit code 1 when a partition of one has no leader."""
        import json

        from reliable_channel.runtime.own_broker import check_kafka
        from reliable_channel.runtime.topics import ensure_topics, find_deviations, refuse_topics_without_leader

        settings = read_settings(context)
        check_kafka(settings)
        created = ensure_topics(settings.kafka)
        topics = settings.kafka.topics
        names = (topics.envelopes, topics.outgoing, topics.dispatched)
        differs = find_deviations(settings.kafka, set(names).difference(created))
        rows = [{"topic": name, "created": name in created, "differs": differs.get(name, [])} for name in names]
        lines = [
            f"{name}: {'created' if name in created else ', '.join(['exists', *differs.get(name, [])])}"
            for name in names
        ]
        typer.echo(json.dumps(rows, indent=1) if as_json else "\n".join(lines))
        refuse_topics_without_leader(settings.kafka, set(names).difference(created))

"""``reliable-channel kafka start|stop|status|topics``: the development broker, and the topics on any cluster."""

from __future__ import annotations

import typer

from reliable_channel.cli.commands import invocation


def register(app: typer.Typer) -> None:
    kafka = typer.Typer(help="The development broker on loopback, and the topics.", no_args_is_help=True)
    app.add_typer(kafka, name="kafka")

    @kafka.command()
    def start(context: typer.Context) -> None:
        """Start the broker unless it runs; returns when a client can produce."""
        from reliable_channel.core.errors import ConfigurationError
        from reliable_channel.runtime import broker, jars

        settings = invocation(context).settings()
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

        typer.echo("Kafka stopped" if broker.stop(invocation(context).settings()) else "Kafka was not running")

    @kafka.command()
    def status(context: typer.Context) -> None:
        """Say whether the broker runs and serves; exit code 3 when it does not run, 1 when it does not serve."""
        from reliable_channel.runtime import broker
        from reliable_channel.runtime.topics import probe

        settings = invocation(context).settings()
        pid = broker.running_pid(broker.files(settings))
        if pid is None:
            typer.echo("Kafka is not running")
            raise typer.Exit(3)
        serves = probe(settings.kafka.model_copy(update={"bootstrap_servers": None}), 10.0)
        typer.echo(f"Kafka runs at 127.0.0.1:{settings.kafka.broker.port} (pid {pid})" + (
            "" if serves else f" but does not serve: read {broker.files(settings).log}"
        ))  # fmt: skip
        if not serves:
            raise typer.Exit(1)

    @kafka.command()
    def topics(context: typer.Context) -> None:
        """Create the topics that do not exist, on the configured cluster."""
        from reliable_channel.runtime.own_broker import require_own_broker
        from reliable_channel.runtime.topics import ensure_topics

        settings = invocation(context).settings()
        require_own_broker(settings)
        created = ensure_topics(settings.kafka)
        names = settings.kafka.topics
        for name in (names.envelopes, names.outgoing):
            typer.echo(f"{name}: {'created' if name in created else 'exists'}")

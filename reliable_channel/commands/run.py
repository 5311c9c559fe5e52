"""``reliable-channel run``: the whole pipeline in one local Spark session."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.commands import invocation


def register(app: typer.Typer) -> None:
    @app.command()
    def run(
        context: typer.Context,
        continuous: Annotated[
            bool, typer.Option("--continuous/--once", help="Until SIGTERM or Ctrl-C, or over what is there now.")
        ] = False,
        close_after_ms: Annotated[
            int | None,
            typer.Option(
                min=0,
                help="With --once: conclude as if that many ms had passed after the last record (default: wall clock).",
            ),
        ] = None,
    ) -> None:
        """Run ingest, reassembly, ack and deliver in one local Spark session."""
        import signal
        import threading

        from reliable_channel.pipeline.metrics import measured
        from reliable_channel.pipeline.run import run_continuously, run_once
        from reliable_channel.runtime.spark import spark_session

        settings = invocation(context).settings()

        def say(what: str) -> None:
            typer.echo(f"  {what}", err=True)

        typer.echo("Starting Spark …", err=True)
        with spark_session(settings) as spark:
            if not continuous:
                with measured(spark, settings, serve=False):
                    run_once(spark, settings, close_after_ms=close_after_ms, on_progress=say)
                return
            stop = threading.Event()
            previous = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGTERM, signal.SIGINT)}
            try:
                with measured(spark, settings, serve=True):
                    run_continuously(spark, settings, stop, on_progress=say)
            finally:
                for number, handler in previous.items():
                    signal.signal(number, handler)
        typer.echo("Stopped.", err=True)

"""``reliable-channel bridge``: a Waku node and Kafka, or the local loop without a node."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.commands import invocation

STATUS_INTERVAL_S = 10.0


def register(app: typer.Typer) -> None:
    @app.command()
    def bridge(
        context: typer.Context,
        loop: Annotated[
            bool, typer.Option("--loop", help="No node: copy the outgoing topic to the envelopes topic.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON lines.")] = False,
        seconds: Annotated[
            float | None, typer.Option(help="End after this many seconds; by default run until stopped.")
        ] = None,
    ) -> None:
        """Carry envelopes between the Waku node and Kafka until Ctrl-C or SIGTERM."""
        import json
        import time
        from dataclasses import asdict

        from reliable_channel.gateway.build import make_bridge
        from reliable_channel.gateway.topics import ensure_evidence_topic
        from reliable_channel.runtime.topics import ensure_topics

        settings = invocation(context).settings()
        running = make_bridge(settings, loop=loop)
        ensure_topics(settings.kafka)
        ensure_evidence_topic(settings)

        def tell() -> None:
            status = asdict(running.status())
            # A count of 0 says nothing; an unreachable node does, and the local loop has none.
            told = [f"{name} {value}" for name, value in status.items() if value not in (0, None) or value is False]
            typer.echo(json.dumps(status) if as_json else ", ".join(told) or "nothing yet")

        what = "Kafka alone, outgoing to envelopes" if loop else f"{settings.node.url} and Kafka"
        try:
            running.start()
            if not as_json:
                typer.echo(f"Bridge between {what} at {settings.kafka.servers}; Ctrl-C ends it.")
            begun = told = time.monotonic()
            before = running.status()
            while seconds is None or time.monotonic() - begun < seconds:
                if not running.wait(0.2):
                    break
                if time.monotonic() - told >= STATUS_INTERVAL_S:
                    told = time.monotonic()
                    if (now := running.status()) != before or as_json:
                        before = now
                        tell()
        finally:
            running.stop()
        if running.failure is not None:
            raise running.failure
        tell()

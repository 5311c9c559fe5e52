"""``reliable-channel bridge``: a Waku node and Kafka, or the local loop without a node."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.cli.commands import echo, read_settings

if TYPE_CHECKING:
    from reliable_channel.transport.bridge import Bridge, BridgeStatus

STATUS_INTERVAL_S = 10.0
FIRST_WORD_S = 15.0
"""How long the command waits for the first answer of the node, or for its fault, before it prints its status."""


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
        """Carry envelopes between the Waku node and Kafka until Ctrl-C or SIGTERM.

        Ends with exit code 1 when the node never answered."""
        from reliable_channel.core.errors import EnvironmentFault
        from reliable_channel.runtime.build import make_bridge
        from reliable_channel.runtime.own_broker import check_kafka
        from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics

        settings = read_settings(context)
        check_kafka(settings)
        running = make_bridge(settings, loop=loop)
        ensure_topics(settings.kafka)
        ensure_evidence_topic(settings)
        what = "Kafka alone, outgoing to envelopes" if loop else f"{settings.node.url} and Kafka"
        try:
            running.start()
            if not as_json:
                echo(f"Bridge between {what} at {settings.kafka.servers}; Ctrl-C ends it.")
            _follow(running, seconds, as_json)
        finally:
            running.stop()
            _print_status(running.status(), as_json)
        if running.failure is not None:
            raise running.failure
        if (ended := running.status()).ever_reachable is False:
            raise EnvironmentFault(
                f"The node was never reached: {ended.fault or f'{settings.node.url} did not answer in time.'}",
                "Check that it runs, and that node.url is the address of its REST interface.",
            )


def _follow(running: Bridge, seconds: float | None, as_json: bool) -> None:
    """Print the status now and then until the bridge ends, or for some seconds."""
    begun = printed = time.monotonic()
    while (now := running.status()).reachable is False and not now.fault and running.wait(0.05):
        if time.monotonic() - begun > FIRST_WORD_S:
            break
    if now.fault and not as_json:
        echo(f"{now.fault} Trying again until it answers.")
    before = running.status()
    while (seconds is None or time.monotonic() - begun < seconds) and running.wait(0.2):
        if time.monotonic() - printed >= STATUS_INTERVAL_S:
            printed = time.monotonic()
            if (now := running.status()) != before or as_json:
                before = now
                _print_status(now, as_json)


def _print_status(status: BridgeStatus, as_json: bool) -> None:
    values = asdict(status)
    counts = [f"{name} {value}" for name, value in values.items() if type(value) is int and value]
    state = f"; not connected: {status.fault}" if status.fault else ""
    echo(json.dumps(values) if as_json else (", ".join(counts) or "nothing yet") + state)

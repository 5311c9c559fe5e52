"""``reliable-channel demo``: a seeded conversation through a real broker and the jobs, and a report that is checked.

Everything of a run is under one directory, which the next run replaces. Nothing is left running.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.commands import invocation

if TYPE_CHECKING:
    from reliable_channel.config import Settings
    from reliable_channel.simulation.world import World

MARKER = ".reliable-channel-demo"
HOUR_MS = 3_600_000
"""Longer than every time-out of the pipeline."""


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        context: typer.Context,
        seed: Annotated[int, typer.Option(help="The same seed gives the same conversation.")] = 7,
        directory: Annotated[
            Path, typer.Option("--dir", help="Where the run's Kafka, tables and truth are kept; emptied first.")
        ] = Path("build/demo"),
        small: Annotated[bool, typer.Option(help="A conversation of two channels and two virtual minutes.")] = False,
        hostile: Annotated[bool, typer.Option(help="The small conversation with hostile senders on it.")] = False,
    ) -> None:
        """Play a conversation through Kafka and the jobs; exit 1 when one message differs from what was really sent."""
        from rich.console import Console

        from reliable_channel.report.check import check
        from reliable_channel.report.check_verdicts import check_verdicts
        from reliable_channel.report.render import render
        from reliable_channel.report.tables import read_observed, read_verdicts
        from reliable_channel.runtime.progress import progress
        from reliable_channel.simulation.truth import Truth

        # Both JVMs live for a minute: what the optimizing compiler costs would not come back (a third of all CPU time).
        # Without it the code cache is 48 MiB, which the plans of the verdicts fill; nothing is compiled any more then.
        os.environ.setdefault(
            "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC"
        )
        place = directory.resolve()
        settings = demo_settings(invocation(context).settings(), prepare(place))
        play(settings, simulated(seed, small, hostile), place)
        with progress("Comparing the tables with the truth"):
            truth = Truth.load(place / "truth")
            observed = read_observed(settings.paths.data_dir)
            lost_after_ms = settings.pipeline.timeout_for_lost_messages_ms
            differences = check(truth, observed, lost_after_ms)
            differences += check_verdicts(truth, read_verdicts(settings.paths.data_dir))
        render(Console(), truth, observed, differences)
        typer.echo(how_to_query(settings.paths.data_dir))
        if differences:
            raise typer.Exit(1)


def prepare(place: Path) -> Path:
    """An empty directory for the run. Only what a demo made is removed; raises ``LocalError`` for anything else."""
    from reliable_channel.errors import LocalError

    if place.exists() and any(place.iterdir()) and not (place / MARKER).exists():
        raise LocalError(f"{place} is not empty and was not made by a demo.", "Choose another with --dir.")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / MARKER).touch()
    return place


def demo_settings(settings: Settings, place: Path) -> Settings:
    """The configuration of the demo: everything under ``place``, a broker of its own on a free port, and a topic that
    keeps the simulation's virtual times (``CreateTime``; no retention, as those times may be long ago)."""
    topics = settings.kafka.topics.model_copy(update={"timestamp_type": "CreateTime", "retention_ms": -1})
    kafka = settings.kafka.model_copy(update={"topics": topics, "bootstrap_servers": None})
    return settings.with_run_dir(place).model_copy(update={"kafka": kafka})


def simulated(seed: int, small: bool, hostile: bool = False) -> World:
    """Play the scenario of the demo in virtual time."""
    from reliable_channel.runtime.progress import progress
    from reliable_channel.simulation.presets import demo_scenario, hostile_scenario, small_scenario
    from reliable_channel.simulation.world import simulate

    preset = hostile_scenario if hostile else small_scenario if small else demo_scenario
    scenario = preset(seed)
    with progress("Simulating the conversation", len(scenario.channels)) as advance:
        done = 0

        def played(channel: str) -> None:
            nonlocal done
            done += 1
            advance(done, channel)

        return simulate(scenario, played)


def play(settings: Settings, world: World, place: Path) -> None:
    """Write the conversation into a broker that lives for this call, and run the jobs on it until all is read and
    every timer has fired."""
    from reliable_channel.gateway.topics import ensure_evidence_topic
    from reliable_channel.runtime.broker import running_broker
    from reliable_channel.runtime.progress import progress
    from reliable_channel.simulation.evidence import sender_events
    from reliable_channel.simulation.to_kafka import write_events, write_records

    with running_broker(settings, place / "kafka") as there:
        topic = there.kafka.topics.envelopes
        with progress(f"Writing to Kafka topic {topic}", len(world.records)) as advance:
            written = write_records(
                world.records, topic, there.kafka.client_options(), on_written=lambda count: advance(count, "")
            )
        world.truth.located(written).save(place / "truth")
        ensure_evidence_topic(there)
        write_events(sender_events(world.journals), there.bridge.evidence_topic, there.kafka.client_options())
        run_jobs(there)


def run_jobs(settings: Settings) -> None:
    """Ingest, reassembly and ack over what is there; then as if an hour had passed in silence, so that what is
    incomplete or lost is known to be; and at the end the verdicts."""
    from reliable_channel.commands.run import judged
    from reliable_channel.pipeline.operations.metrics import measured
    from reliable_channel.pipeline.running.queries import CHAIN
    from reliable_channel.pipeline.running.run import run_once
    from reliable_channel.runtime.progress import progress
    from reliable_channel.runtime.spark import spark_session

    # All jobs, the closing tick, all but ingest again, and the verdicts.
    with progress("Running the jobs", 2 * len(CHAIN) + 1) as advance:
        advance(0, "starting Spark")
        with spark_session(settings, "reliable-channel demo") as spark:
            steps = 0

            def step(name: str) -> None:
                nonlocal steps
                steps += 1
                advance(steps, name)

            with measured(spark, settings, serve=False):
                run_once(spark, settings, close_after_ms=HOUR_MS, on_progress=step)
            step("verdicts")
            judged(spark, settings, lambda _: None)


def how_to_query(data_dir: str) -> str:
    """How to go on with the tables: the report, one line without Spark, one with Spark, and the notebooks."""
    try:
        shown = str(Path(data_dir).relative_to(Path.cwd()))
    except ValueError:
        shown = data_dir
    counts = "channel_id, sender_id, count(*) AS messages"
    sql = f"SELECT {counts} FROM delivered_messages GROUP BY ALL ORDER BY ALL"  # noqa: S608  for people to read and run
    reading = f"read.format('delta').load('{shown}/acks')"
    grouped = "groupBy('channel_id', 'evidence').count().show()"
    return f"""
The Delta tables are in {shown}; docs/tables.md says what they hold. To go on
  the report:     .venv/bin/reliable-channel report --tables {shown} --html build/report.html
  without Spark:  .venv/bin/python -c "from reliable_channel.config import PathSettings; \
from reliable_channel.report.lake import Lake; \
print(*Lake(PathSettings(data_dir='{shown}')).select('{sql}'), sep=chr(10))"
  with Spark:     .venv/bin/python -c "from reliable_channel.config import load; \
from reliable_channel.runtime.spark import open_session; open_session(load()).{reading}.{grouped}"
  the notebooks:  RELIABLE_CHANNEL_TABLES={data_dir} \
.venv/bin/jupyter nbconvert --execute --to html --output-dir build notebooks/*.ipynb
"""

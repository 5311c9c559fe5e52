"""``reliable-channel demo``: a seeded conversation through a real broker and the jobs, and a report that is checked.

All files of a run are under one directory, which the next run replaces. No process is left running.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.cli.commands import read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reliable_channel.config import Settings
    from reliable_channel.simulation.journal import ObserverRecord
    from reliable_channel.simulation.to_kafka import Coordinates
    from reliable_channel.simulation.world import World
    from reliable_channel.transport.store.client import StoreClient
    from reliable_channel.transport.store.model import StoreEntry

MARKER = ".reliable-channel-demo"
HOUR_MS = 3_600_000
"""Longer than every time-out of the pipeline but the lifetime of a set."""
LONG_AGO_MS = 100 * 365 * 24 * HOUR_MS
"""The virtual times of a simulation may be as long ago as this."""
SETTLE_DELAY_MS = 60_000
AUDITED = 0.1
"""The share of seen envelopes that the store nodes are asked for."""
GIVEN_BACK_AFTER_MS = 1_000
"""How long after the last record the envelopes returned by the stores arrive."""


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        context: typer.Context,
        seed: Annotated[int, typer.Option(help="The same seed gives the same conversation.")] = 7,
        directory: Annotated[
            Path | None,
            typer.Option(
                "--dir",
                help="Where the run's Kafka, tables and truth are kept; emptied first.",
                show_default="build/demo, with -hostile, -slow or -bad-day",
            ),
        ] = None,
        small: Annotated[bool, typer.Option(help="A conversation of two channels and two virtual minutes.")] = False,
        hostile: Annotated[bool, typer.Option(help="The small conversation with hostile senders on it.")] = False,
        slow: Annotated[
            bool, typer.Option(help="Senders who are away, or wait for rate limit epochs, in the middle of a message.")
        ] = False,
        bad_day: Annotated[bool, typer.Option(help="A split, a store that keeps nothing, and a flood.")] = False,
    ) -> None:
        """Run a conversation through Kafka and the jobs; exit 1 when one message differs from what was really sent."""
        from rich.console import Console

        from reliable_channel.runtime.java import SHORT_LIVED
        from reliable_channel.runtime.progress import progress
        from reliable_channel.simulation.check.headline import check_headline
        from reliable_channel.simulation.check.promises import check
        from reliable_channel.simulation.check.tables import read_observed, read_verdicts
        from reliable_channel.simulation.check.terminal import next_steps, render
        from reliable_channel.simulation.check.verdicts import check_verdicts
        from reliable_channel.simulation.truth import Truth

        os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED)
        chosen = {"hostile": hostile, "slow": slow, "bad-day": bad_day}
        own = next((name for name, is_chosen in chosen.items() if is_chosen), None)
        scenario = own or ("small" if small else "demo")
        run_dir = (directory or Path(f"build/demo-{own}" if own else "build/demo")).resolve()
        settings = demo_settings(read_settings(context), prepare(run_dir))
        world = simulate_scenario(seed, scenario)
        settings = keep_sets_long_enough(settings, world)
        play(settings, world, run_dir)
        with progress("Comparing the tables with the truth"):
            truth = Truth.load(run_dir / "truth")
            observed = read_observed(settings.paths.data_dir)
            lost_after_ms = settings.pipeline.timeout_for_lost_messages_ms
            differences = check(truth, observed, lost_after_ms)
            judged = read_verdicts(settings.paths.data_dir)
            differences += check_verdicts(truth, judged)
            differences += check_headline(judged, settings.paths)
        data_dir = settings.paths.data_dir
        render(Console(), truth, observed, judged, differences, data_dir)
        typer.echo(next_steps(data_dir))
        if differences:
            raise typer.Exit(1)


def prepare(run_dir: Path) -> Path:
    """An empty directory for the run. Only a directory made by a demo is removed; raises ``LocalError`` for anything
    else."""
    from reliable_channel.core.errors import LocalError

    if run_dir.exists() and any(run_dir.iterdir()) and not (run_dir / MARKER).exists():
        raise LocalError(f"{run_dir} is not empty and was not made by a demo.", "Choose another with --dir.")
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    (run_dir / MARKER).touch()
    return run_dir


def demo_settings(settings: Settings, run_dir: Path) -> Settings:
    """The configuration of the demo: everything under ``run_dir``, a broker of its own on a free port, and a topic that
    keeps the simulation's virtual times (``CreateTime``; no retention, as those times may be long ago)."""
    from reliable_channel.runtime.java import INTERPRETED

    # What the senders dispatched and nobody saw is asked for this long after it: before the conversation ends.
    pipeline = settings.pipeline.model_copy(update={"settle_delay_ms": SETTLE_DELAY_MS})
    topics = settings.kafka.topics.model_copy(update={"timestamp_type": "CreateTime", "retention_ms": -1})
    kafka = settings.kafka.model_copy(update={"topics": topics, "bootstrap_servers": None})
    spark = settings.spark.model_copy(update={"conf": INTERPRETED | settings.spark.conf})
    update = {"kafka": kafka, "pipeline": pipeline, "spark": spark}
    return settings.with_run_dir(run_dir).model_copy(update=update)


def keep_sets_long_enough(settings: Settings, world: World) -> Settings:
    """The configuration that keeps incomplete sets longer than a conversation lasts: stores are asked at its end."""
    lifetime_ms = max(HOUR_MS, 2 * (world.scenario.end_ms - world.scenario.start_ms))
    segmentation = replace(settings.segmentation, max_set_lifetime_ms=lifetime_ms)
    return settings.model_copy(update={"segmentation": segmentation})


def simulate_scenario(seed: int, name: str) -> World:
    """Play the scenario ``name`` (demo, small, hostile, slow or bad-day) in virtual time."""
    from reliable_channel.runtime.progress import progress
    from reliable_channel.simulation import presets
    from reliable_channel.simulation.world import simulate

    scenarios = {
        "demo": presets.demo_scenario,
        "small": presets.small_scenario,
        "hostile": presets.hostile_scenario,
        "slow": presets.slow_scenario,
        "bad-day": presets.bad_day_scenario,
    }
    scenario = scenarios[name](seed)
    with progress("Simulating the conversation", len(scenario.channels)) as advance:
        return simulate(scenario, advance)


def play(settings: Settings, world: World, run_dir: Path) -> None:
    """Write the conversation to a broker and the stored envelopes to store nodes, which run during this call, and run
    all jobs on them until everything is read and every timer has fired. Saves the truth under ``run_dir``."""
    from reliable_channel.runtime.broker import running_broker
    from reliable_channel.runtime.progress import progress
    from reliable_channel.runtime.topics import ensure_evidence_topic
    from reliable_channel.simulation.evidence import sender_events, sightings
    from reliable_channel.simulation.stores import store_nodes, truth_with
    from reliable_channel.simulation.to_kafka import write_events, write_records

    scenario = world.scenario
    with running_broker(settings, run_dir / "kafka") as there, store_nodes(world) as nodes:
        topic = there.kafka.topics.envelopes
        with progress(f"Writing to Kafka topic {topic}", len(world.records)) as advance:
            written = write_records(
                world.records, topic, there.kafka.clients().producer, on_written=lambda count: advance(count, "")
            )
        ensure_evidence_topic(there)
        evidence = [*sender_events(world.journals), *sightings(world.records, scenario.vantages, scenario.seed)]
        write_events(evidence, there.bridge.evidence_topic, there.kafka.clients().producer)
        later, coordinates = run_jobs(with_stores(there, nodes), world)
        truth_with(world, later).locate([*written, *coordinates]).save(run_dir / "truth")


def with_stores(settings: Settings, nodes: Sequence[str]) -> Settings:
    """The configuration with these store nodes, which audits a sample of the seen envelopes of any age."""
    from reliable_channel.config import StoreAuditSettings
    from reliable_channel.config.node import StoreNodeSettings

    audit = StoreAuditSettings(share=AUDITED, within_ms=LONG_AGO_MS)
    stores = [StoreNodeSettings(url=url, dialect="nwaku") for url in nodes]
    return settings.model_copy(update={"store": settings.store.model_copy(update={"nodes": stores, "audit": audit})})


def _find_causal_position(entry: StoreEntry) -> tuple[int, bytes]:
    """The Lamport timestamp (ms) of the SDS message in an envelope; of an encrypted one, that of the envelope."""
    from reliable_channel.core.wire.malformed import Malformed
    from reliable_channel.core.wire.sds import decode_sds_message

    if entry.message is None:
        return 0, entry.message_hash
    message = decode_sds_message(entry.message.payload)
    lamport = None if isinstance(message, Malformed) else message.lamport_timestamp
    return lamport or (entry.message.timestamp or 0) // 1_000_000, entry.message_hash


def run_jobs(settings: Settings, world: World) -> tuple[list[ObserverRecord], list[Coordinates]]:
    """Run all jobs over the available records: the chain, evidence, refetch and the envelopes it returns. Then, as if
    the lifetime of a set had passed in silence, so that incomplete and lost messages are known to be so, run the chain
    again, verdicts and alerts. Returns the envelopes that the stores returned and their places in Kafka."""
    from reliable_channel.cli.commands.run import run_collection, run_verdicts
    from reliable_channel.evidence.refetch import refetch
    from reliable_channel.pipeline.runner.metrics import record_metrics
    from reliable_channel.pipeline.runner.run import close, run_chain
    from reliable_channel.runtime.build import store_client
    from reliable_channel.runtime.progress import progress
    from reliable_channel.runtime.spark import spark_session
    from reliable_channel.simulation.stores import give_back
    from reliable_channel.simulation.to_kafka import write_records

    later: list[ObserverRecord] = []
    coordinates: list[Coordinates] = []
    silence_ms = settings.segmentation.max_set_lifetime_ms
    at_ms = max((record.at_ms for record in world.records), default=0)

    def fetch(client: StoreClient) -> bool:
        """Run the refetch job; returns whether envelopes came. Nodes answer side by side, in any order; what they
        return is written in causal order, so that a seed always gives the same tables."""
        returned: list[StoreEntry] = []
        refetch(settings, client, returned.extend)
        returned.sort(key=_find_causal_position)
        records = give_back(world, [entry.message_hash for entry in returned], at_ms + GIVEN_BACK_AFTER_MS)
        later.extend(records)
        kafka = settings.kafka
        coordinates.extend(write_records(records, kafka.topics.envelopes, kafka.clients().producer))
        return bool(returned)

    with progress("Running the jobs") as advance:
        advance(0, "starting Spark")
        with spark_session(settings, "reliable-channel demo") as spark:
            steps = 0

            def step(name: str) -> None:
                nonlocal steps
                steps += 1
                advance(steps, name)

            with record_metrics(spark, settings, serve=False):
                run_chain(spark, settings, on_progress=step)
                step("evidence, refetch")
                run_collection(settings, lambda _: None)
                with closing(store_client(settings)) as client:
                    while fetch(client):
                        run_chain(spark, settings, on_progress=step)
                    close(spark, settings, close_after_ms=silence_ms, on_progress=step)
                    # Now the time to wait for what was sent at the end is over as well.
                    while fetch(client):
                        run_chain(spark, settings, on_progress=step)
                        close(spark, settings, close_after_ms=silence_ms, on_progress=step)
            step("verdict, alerts")
            run_verdicts(spark, settings, lambda _: None)
    return later, coordinates

"""``reliable-channel simulate``: a seeded conversation as real wire bytes into Kafka, and its truth in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reliable_channel.cli.commands import read_settings


def register(app: typer.Typer) -> None:
    @app.command()
    def simulate(
        context: typer.Context,
        seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
        messages: Annotated[int, typer.Option(min=1, max=10**7, help="Application messages in all.")] = 200,
        participants: Annotated[int, typer.Option(min=1, max=100, help="Participants of each channel.")] = 3,
        channels: Annotated[int, typer.Option(min=1, max=10**6, help="Channels.")] = 4,
        topics: Annotated[int, typer.Option(min=1, max=10**6, help="Content topics the channels share.")] = 2,
        loss: Annotated[float, typer.Option(min=0, max=1, help="Share of envelopes each link loses.")] = 0.05,
        bursty: Annotated[bool, typer.Option(help="Lose envelopes in bursts (Gilbert-Elliott) as well.")] = False,
        minutes: Annotated[float, typer.Option(min=0.1, max=1e6, help="Virtual length of the conversation.")] = 10.0,
        parity_rate: Annotated[
            float | None, typer.Option(min=0.01, max=1, help="Parity segments per data segment; none by default.")
        ] = None,
        segment_size: Annotated[int, typer.Option(min=64, max=102_400, help="Bytes per segment.")] = 4_096,
        bad_share: Annotated[float, typer.Option(min=0, max=1, help="Undecodable records per message.")] = 0.05,
        rate: Annotated[float | None, typer.Option(min=0.1, help="Records per second; unlimited by default.")] = None,
        topic: Annotated[str | None, typer.Option(help="Kafka topic; kafka.topics.envelopes by default.")] = None,
        truth: Annotated[Path | None, typer.Option(help="Directory for the truth; <run_dir>/truth by default.")] = None,
    ) -> None:
        """Write a simulated conversation to Kafka, and the truth about it to Parquet files."""
        from reliable_channel.runtime.own_broker import check_kafka
        from reliable_channel.runtime.progress import progress
        from reliable_channel.simulation.presets import custom_scenario
        from reliable_channel.simulation.to_kafka import write_records
        from reliable_channel.simulation.world import simulate as play

        settings = read_settings(context)
        check_kafka(settings)
        scenario = custom_scenario(
            seed=seed,
            messages=messages,
            participants=participants,
            channels=channels,
            topics=topics,
            loss=loss,
            duration_ms=int(minutes * 60_000),
            parity_rate=parity_rate,
            segment_size=segment_size,
            bad_share=bad_share,
            bursty=bursty,
        )
        with progress("Simulating", channels) as advance:
            world = play(scenario, advance)
        target = topic or settings.kafka.topics.envelopes
        with progress(f"Writing to {target}", len(world.records)) as advance:
            written = write_records(
                world.records, target, settings.kafka.clients().producer, rate, lambda count: advance(count, "")
            )
        directory = truth or Path(settings.paths.run_dir) / "truth"
        world.truth.locate(written).save(directory)
        typer.echo(
            f"{len(world.records)} records of {len(world.truth.messages)} messages on {channels} channels "
            f"are in {target}; the truth about them is in {directory}"
        )

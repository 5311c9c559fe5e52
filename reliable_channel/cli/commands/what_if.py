"""``reliable-channel what-if``: what recorded traffic would have become under other settings."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import count, product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reliable_channel.cli.commands import JsonOption, TablesOption, read_settings
from reliable_channel.cli.commands.channel import ChannelArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliable_channel.analysis.report.channel_key import ChannelFilter
    from reliable_channel.analysis.report.snapshot import TableSnapshot
    from reliable_channel.config import Settings
    from reliable_channel.simulation.what_if.prediction import Prediction, WhatIf
    from reliable_channel.simulation.what_if.recording import Recording

MOST_SETTINGS = 24


def register(app: typer.Typer) -> None:
    @app.command("what-if")
    def what_if(
        context: typer.Context,
        channel_id: ChannelArgument,
        content_topic: Annotated[str | None, typer.Option(help="Content topic, if several have the channel.")] = None,
        pubsub_topic: Annotated[str | None, typer.Option(help="Pubsub topic, if several have the channel.")] = None,
        parity: Annotated[str, typer.Option(metavar="RATES", help="Parity segments per data segment.")] = "",
        history: Annotated[str, typer.Option(metavar="COUNTS", help="Ids in a causal history.")] = "",
        ack_timeout: Annotated[str, typer.Option(metavar="TIMES", help="First wait for an acknowledgement.")] = "",
        retransmissions: Annotated[str, typer.Option(metavar="COUNTS", help="Retransmissions of a segment.")] = "",
        repair: Annotated[str, typer.Option(metavar="on,off", help="Repairs by others (SDS-R).")] = "",
        segment_size: Annotated[str, typer.Option(metavar="BYTES", help="Bytes of a segment.")] = "",
        slots: Annotated[str, typer.Option(metavar="COUNTS", help="Envelopes of a sender in an epoch, or none.")] = "",
        messages: Annotated[int, typer.Option(min=20, max=5_000, help="How many of the newest messages.")] = 300,
        seeds: Annotated[int, typer.Option(min=1, max=50, help="Simulations of each.")] = 5,
        target: Annotated[str, typer.Option(metavar="SHARE", help="What must be delivered: 0.99, 99.9%.")] = "99%",
        as_json: JsonOption = False,
        tables: TablesOption = None,
    ) -> None:
        """Predict what the recorded traffic of a channel would have become under other settings. Needs no Spark.

        Options take several values, separated by commas; all combinations are simulated, beside the settings
        in use (sds, segmentation and rate_limit of the configuration; parity, history and segment size from
        the messages).

        For example: reliable-channel what-if talk --parity 0.125,0.25 --ack-timeout 5s,10s
        """
        from reliable_channel.analysis.report.snapshot import TableSnapshot
        from reliable_channel.analysis.report.thresholds import share
        from reliable_channel.runtime.progress import progress
        from reliable_channel.simulation.what_if.prediction import find_cheapest, fit_losses, predict
        from reliable_channel.simulation.what_if.recording import read_recording

        settings = read_settings(context, tables)
        least = share(target)
        lake = TableSnapshot(settings.paths)
        lake.require_any()
        key = _find_channel(lake, channel_id, content_topic=content_topic, pubsub_topic=pubsub_topic)
        recording = replace(
            read_recording(lake, key, messages), acknowledge_within_ms=settings.sds.acknowledge_within_ms
        )
        base = _read_settings_in_use(settings, recording)
        given = {
            "parity": parity,
            "history": history,
            "ack_timeout_ms": ack_timeout,
            "retransmissions": retransmissions,
            "repair": repair,
            "segment_size": segment_size,
            "slots": slots,
        }
        cases = _combine(base, {name: text for name, text in given.items() if text})
        done = count(1)
        with progress("Estimating the losses") as advance:  # until they fit: nobody knows how many simulations
            recording = fit_losses(recording, base, lambda: advance(next(done), ""))
        done = count(1)
        with progress("Simulating", len(cases) * seeds) as advance:
            predictions = [
                predict(recording, case, range(1, seeds + 1), lambda: advance(next(done), "")) for case in cases
            ]
        cheapest = find_cheapest(predictions, least)
        if as_json:
            rows = [_to_values(each, base, each is cheapest) for each in predictions]
            typer.echo(json.dumps(rows, indent=1))
        else:
            _print_predictions(recording, predictions, base, cheapest, least, seeds)


def _find_channel(lake: TableSnapshot, channel_id: str, **topics: str | None) -> ChannelFilter:
    """The key of a channel. Raises ``LocalError`` when there is none, or several."""
    from reliable_channel.analysis import text
    from reliable_channel.analysis.report.channel_key import ChannelFilter
    from reliable_channel.core.errors import LocalError

    rows = lake.select(
        """SELECT pubsub_topic, content_topic, channel_id FROM sds_messages WHERE channel_id = $channel
           AND coalesce(content_topic = $content_topic, $content_topic IS NULL)
           AND coalesce(pubsub_topic = $pubsub_topic, $pubsub_topic IS NULL)
           GROUP BY ALL ORDER BY count(*) DESC LIMIT 6""",
        {"channel": channel_id, **topics},
    )
    if not rows:
        raise LocalError(
            f"There is no channel {text.name(channel_id)} in the tables.", "`reliable-channel report` lists channels."
        )
    if len(rows) > 1:
        different = {name: dict.fromkeys(row[name] for row in rows) for name in topics}
        name, values = next(each for each in different.items() if len(each[1]) > 1)
        raise LocalError(
            f"Several channels are called {text.name(channel_id)}.",
            f"Choose one with --{name.replace('_', '-')}: {', '.join(map(text.name, values))}.",
        )
    return ChannelFilter(**rows[0])


def _read_settings_in_use(settings: Settings, recording: Recording) -> WhatIf:
    from reliable_channel.simulation.what_if.prediction import WhatIf

    sds, limit = settings.sds, settings.rate_limit
    return WhatIf(
        parity=round(recording.parity, 3),
        history=recording.history,
        ack_timeout_ms=sds.acknowledgement_timeout_ms,
        retransmissions=sds.max_retransmissions,
        repair=sds.repair,
        segment_size=recording.segment_size or settings.segmentation.segment_size_bytes,
        slots=limit.messages_per_epoch if limit.enabled else None,
        epoch_ms=limit.epoch_size_ms,
    )


def _combine(base: WhatIf, given: dict[str, str]) -> list[WhatIf]:
    """The settings in use, and all combinations of the options' values. Raises ``LocalError`` for a wrong value."""
    from reliable_channel.core.errors import LocalError

    values = [[_parse(name, one.strip()) for one in text.split(",")] for name, text in given.items()]
    cases = [replace(base, **dict(zip(given, one, strict=True))) for one in product(*values)]
    if len(cases) > MOST_SETTINGS:
        raise LocalError(f"{len(cases)} combinations are too many.", f"Give values for {MOST_SETTINGS} at most.")
    return list(dict.fromkeys([base, *cases]))


def _parse(name: str, value: str) -> Any:
    """One value of an option. Raises ``LocalError`` for one that it cannot have."""
    from reliable_channel.analysis.report.times import duration_ms
    from reliable_channel.core.errors import LocalError

    options: dict[str, tuple[Callable[[str], Any], float, float]] = {
        "parity": (float, 0, 1),
        "history": (int, 1, 1_000),
        "ack_timeout_ms": (lambda text: round(duration_ms(text)), 1, 3_600_000),
        "retransmissions": (int, 0, 100),
        "repair": ({"on": True, "off": False}.__getitem__, False, True),
        "segment_size": (int, 64, 102_400),
        "slots": (int, 1, 10**6),
    }
    if name == "slots" and value == "none":
        return None
    option = f"--{name.removesuffix('_ms').replace('_', '-')}"
    read, least, most = options[name]
    try:
        number = read(value)
    except (ValueError, KeyError):
        examples = "`reliable-channel what-if --help` has examples."
        raise LocalError(f"{option} cannot be {value[:40]!r}.", examples) from None
    if not least <= number <= most:
        raise LocalError(f"{option} {number} is out of range.", f"Choose {least} to {most}.")
    return number


def _to_values(prediction: Prediction, base: WhatIf, is_cheapest: bool) -> dict[str, Any]:
    return {
        "settings": asdict(prediction.settings),
        "in_use": prediction.settings == base,
        **asdict(prediction.mean),
        "delivered_least": prediction.least,
        "delivered_most": prediction.most,
        "cheapest": is_cheapest,
    }


def _print_predictions(
    recording: Recording,
    predictions: list[Prediction],
    base: WhatIf,
    cheapest: Prediction | None,
    least: float,
    seeds: int,
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from reliable_channel.analysis import text

    losses = sorted(recording.losses.items(), key=lambda item: -item[1])
    mean = sum(loss for _, loss in losses) / len(losses)
    (sender, receiver), most = losses[0]
    worst = f", most from {text.name(sender, 20)} to {text.name(receiver, 20)}: {text.percent(most)}"
    typer.echo(
        f"{text.name(recording.channel_id)}: {len(recording.sends)} messages of {len(recording.participants)} "
        f"participants in {text.duration(recording.duration_ms)}\n"
        f"Links lose {text.percent(mean)} (mean){worst}\n"
        f"{seeds} simulations each; delivered: mean, and least to most"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("settings", "delivered", "", "p50", "p95", "envelopes", "KiB", "slots"):
        table.add_column(name, justify="left" if name == "settings" else "right", no_wrap=name != "settings")
    for each in predictions:
        mean_of = each.mean
        table.add_row(
            each.settings.name_changes(base) or "in use",
            text.percent(mean_of.delivered),
            f"{text.percent(each.least)}–{text.percent(each.most)}",
            text.duration(mean_of.p50_ms),
            text.duration(mean_of.p95_ms),
            text.number(mean_of.envelopes),
            text.number(mean_of.sent_bytes / 1024),
            text.count(mean_of.slots),
        )
    Console(width=None if typer.get_text_stream("stdout").isatty() else 120).print(table)
    typer.echo("envelopes, KiB: per message; slots: the most envelopes of a sender in an epoch")
    if cheapest is None:
        typer.echo(f"No settings deliver {text.percent(least)} in every simulation.")
    else:
        name = cheapest.settings.name_changes(base) or "the settings in use"
        typer.echo(f"Fewest bytes with {text.percent(least)} delivered in every simulation: {name}")

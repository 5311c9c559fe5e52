"""``reliable-channel evidence``: evidence about one message as a file to hand on, its check, and logs of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.cli.commands import TablesOption, read_settings
from reliable_channel.cli.commands.channel import KeyFiles
from reliable_channel.cli.commands.report import write_whole

if TYPE_CHECKING:
    from reliable_channel.analysis.bundle.verify import EvidenceCheck
    from reliable_channel.evidence.log_files import LogCounts

CHANGED = (
    "The configuration may have changed since the verdicts were derived:"
    " `reliable-channel run --once --verdicts` derives them again."
)
"""The remedy for a bundle that differs when it is made."""


def register(app: typer.Typer) -> None:
    evidence = typer.Typer(
        help="Evidence: about a message, as a file that anybody can check; from the logs of nodes.",
        no_args_is_help=True,
    )
    app.add_typer(evidence, name="evidence")

    @evidence.command()
    def bundle(
        context: typer.Context,
        message: Annotated[str, typer.Argument(metavar="ID", help="Its key, SDS id or hash, or how one begins.")],
        out: Annotated[Path, typer.Option(metavar="FILE", help="Where the bundle is written.")],
        tables: TablesOption = None,
    ) -> None:
        """Write all evidence about a message into one file: envelopes, acknowledgements, verdict. Needs no Spark.

        Exit codes: 0 nothing in it differs, 1 something does (it is written nevertheless).
        """
        import hashlib

        from reliable_channel.analysis.bundle.archive import read_bundle
        from reliable_channel.analysis.bundle.collect import collect
        from reliable_channel.analysis.bundle.verify import verify
        from reliable_channel.analysis.text import size

        settings = read_settings(context, tables)
        content = collect(settings, message)
        write_whole(out, content)
        typer.echo(f"Written: {out} ({size(len(content))}), SHA-256 {hashlib.sha256(content).hexdigest()}")
        if wrong := _list_differing(verify(read_bundle(content), settings.channels)):
            typer.echo("\n".join([*wrong, CHANGED]), err=True)
            raise typer.Exit(1)

    @evidence.command()
    def verify(
        context: typer.Context,
        file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle.")],
        key_files: KeyFiles = None,
        html: Annotated[Path | None, typer.Option(metavar="PAGE", help="Write the bundle as one HTML page.")] = None,
    ) -> None:
        """Check a bundle with nothing but its file: one line a check. Needs no tables, Spark or network.

        An encrypted topic needs its key: that of the configuration, or --key-file.

        Exit codes: 0 nothing differs, 1 something does, 2 the file is no bundle.
        """
        import hashlib

        from reliable_channel.analysis.bundle.archive import read_bundle
        from reliable_channel.analysis.bundle.verify import BundleSnapshot, verify

        content = _read_file(file)
        given = read_bundle(content)
        channels = read_settings(context).channels
        checks = verify(given, channels, key_files or ())
        if html is not None:
            from reliable_channel.analysis.dashboard import evidence_page

            write_whole(html, evidence_page.render(file.name, BundleSnapshot(given), checks))
        typer.echo(f"SHA-256 {hashlib.sha256(content).hexdigest()}, written by {given.about['program']!a:.80}")
        for check in checks:
            typer.echo(str(check))
        if _list_differing(checks):
            raise typer.Exit(1)

    @evidence.command()
    def logs(
        context: typer.Context,
        files: Annotated[
            list[Path] | None, typer.Argument(metavar="FILE…", help="Logs: text, gzip or zstd; - for standard input.")
        ] = None,
        topic: Annotated[
            str | None, typer.Option(help="Read a Kafka topic of log lines instead, from where the last time ended.")
        ] = None,
        follow: Annotated[bool, typer.Option("--follow", help="With --topic: go on at its end, until Ctrl-C.")] = False,
        node: Annotated[
            str | None, typer.Option(help="Name of the node; by default its peer id, where the log has it.")
        ] = None,
        node_field: Annotated[
            str | None,
            typer.Option(
                metavar="FIELD",
                help="With --topic: the field of a record's JSON that names the node, such as kubernetes.pod_name;"
                " by default the key of the record, else the peer id.",
            ),
        ] = None,
        tables: TablesOption = None,
    ) -> None:
        """Add what logs of nwaku, logos-delivery, go-waku and status-go show to the table sightings. Needs no Spark."""
        from reliable_channel.core.errors import LocalError
        from reliable_channel.evidence.log_files import read_logs

        settings = read_settings(context, tables)
        if bool(files) == (topic is not None) or (topic is None and (follow or node_field)):
            raise LocalError("Either files or a topic are read.", "Name files, or give --topic NAME.")
        if topic is None:
            _tell_counts(read_logs(settings.paths, files or (), node))
        else:
            from reliable_channel.evidence.log_topic import read_topic
            from reliable_channel.runtime.own_broker import check_kafka

            check_kafka(settings)
            _tell_counts(read_topic(settings.paths, settings.kafka.clients(), topic, node, node_field, follow))


def _tell_counts(counts: LogCounts) -> None:
    from reliable_channel.analysis.text import count, printable

    typer.echo(f"Lines: {count(counts.lines)}. Sightings: {count(counts.sightings)}, new: {count(counts.new)}.")
    for number, why in (
        (counts.too_long, "lines are longer than 64 KiB and were skipped"),
        (counts.no_time, "lines have no time, or an impossible one, and were skipped"),
        (counts.unnamed, "lines name a message but not their node, and were skipped"),
        (counts.withheld, "records are withheld by an open transaction: read the topic again when it has ended"),
    ):
        if number:
            typer.echo(f"{count(number)} {why}.", err=True)
    if counts.unknown:
        examples = ", ".join(f"“{printable(text, 60)}” ({count(n)})" for text, n in counts.unknown.most_common(3))
        total = count(counts.unknown.total())
        typer.echo(f"{total} lines name a message but are no known event, such as {examples}.", err=True)


def _list_differing(checks: list[EvidenceCheck]) -> list[str]:
    from reliable_channel.analysis.bundle.verify import CheckOutcome

    return [str(check) for check in checks if check.outcome is CheckOutcome.DIFFERS]


def _read_file(file: Path) -> bytes:
    """The file, or as much of it as is too much."""
    from reliable_channel.analysis.bundle.archive import MAX_FILE_BYTES
    from reliable_channel.core.errors import LocalError

    try:
        with file.open("rb") as opened:
            return opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise LocalError(f"{file} cannot be read: {error.strerror}.", "Name the file of a bundle.") from error

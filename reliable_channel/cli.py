"""The console script ``reliable-channel``: assembles the command modules, and turns faults into one sentence.

Knows no command: every module of ``reliable_channel.commands`` registers its own. An error is printed as cause and
remedy without a stack trace (``--debug`` shows it): :mod:`reliable_channel.runtime.faults`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

import reliable_channel.commands
from reliable_channel import __version__
from reliable_channel.commands import Invocation
from reliable_channel.runtime.faults import UNFORESEEN, debugging, ended_by
from reliable_channel.runtime.logs import tame_kafka
from reliable_channel.transport.private_files import OWNERS_UMASK

EXIT_CODES = {
    0: "done",
    1: "a fault of this machine or of a peer, or a check that failed; nothing is wrong with what was typed",
    2: "wrong usage or configuration",
    3: "what was asked for does not hold: a threshold is crossed, a broker does not run, nothing is kept of a channel",
    UNFORESEEN: "an error that nobody foresaw; `--debug` shows where",
    130: "ended by Ctrl-C",
    143: "ended by SIGTERM, in order",
}
"""What the exit code of every command says."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reliable-channel {__version__}")
        raise typer.Exit


def build() -> typer.Typer:
    """The Typer application with the commands of every module in ``reliable_channel.commands``."""
    app = typer.Typer(
        name="reliable-channel",
        help="Reliable channels of the Waku network on Spark: what was delivered, what was lost, and why.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        context: typer.Context,
        config: Annotated[
            str | None,
            typer.Option(
                "--config",
                "-c",
                envvar="RELIABLE_CHANNEL_CONFIG",
                help="Configuration: a YAML file, or the name of one in conf/ (local, cluster).",
            ),
        ] = None,
        debug: Annotated[
            bool, typer.Option("--debug", envvar="RELIABLE_CHANNEL_DEBUG", help="Show stack traces.")
        ] = False,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
        ] = False,
    ) -> None:
        context.obj = Invocation(config=config, debug=debug)

    for module in sorted(m.name for m in pkgutil.iter_modules(reliable_channel.commands.__path__)):
        importlib.import_module(f"reliable_channel.commands.{module}").register(app)
    return app


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM as an exception, so that ``finally`` blocks stop what a command has started."""
    raise SystemExit(143)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line (``sys.argv`` by default) and exit; never shows a stack trace unless ``--debug``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments or debugging()
    os.umask(os.umask(OWNERS_UMASK) | OWNERS_UMASK)  # Spark and the broker inherit it
    signal.signal(signal.SIGTERM, _terminated)
    tame_kafka()
    try:
        build()(args=arguments, prog_name="reliable-channel")
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped.\n")
        sys.exit(130)
    except Exception as error:  # whatever it is, a person gets one sentence
        sys.exit(ended_by(error, "reliable-channel", debug))
    sys.exit(0)


if __name__ == "__main__":
    main()

"""Assembles the command modules to one program, and prints a fault as one sentence.

It contains no command: every module of ``reliable_channel.cli.commands`` registers its own. An error is printed as
cause and remedy without a stack trace (``--debug`` shows it): :mod:`reliable_channel.runtime.faults`.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.models import CommandInfo, TyperInfo

import reliable_channel.cli.commands
from reliable_channel import __version__
from reliable_channel.core.errors import LocalError
from reliable_channel.runtime.faults import UNFORESEEN, is_debugging, run_to_exit_code
from reliable_channel.runtime.interrupts import end_at_once
from reliable_channel.runtime.logs import show_logs
from reliable_channel.transport.private_files import OWNERS_UMASK

EXIT_CODES = {
    0: "done",
    1: "a fault of this machine or of a peer, or a check that failed; nothing is wrong with what was typed",
    2: "wrong usage or configuration",
    3: "what was asked for does not hold: a threshold is crossed, a broker does not run, nothing is kept of a channel",
    UNFORESEEN: "an error that nobody foresaw; `--debug` shows where",
    129: "ended by SIGHUP, as when its terminal is closed, in order",
    130: "ended by Ctrl-C",
    143: "ended by SIGTERM, in order",
}
"""The meaning of every command's exit codes."""

HELP_NAMES = ["-h", "--help"]
PANELS = {
    "Begin": ("setup", "demo", "simulate"),
    "Run the pipeline": ("run", "alerts", "status", "maintain", "requeue", "rebuild"),
    "Look at what it found": ("report", "dashboard", "sql", "tables", "notebooks", "what-if"),
    "Take part": ("send", "listen", "channel", "api"),
    "Connect": ("bridge", "evidence", "kafka", "store", "config", "files", "jars"),
}
"""The groups of the help, and the commands in each."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reliable-channel {__version__}")
        raise typer.Exit


def build(command: str | None = None) -> typer.Typer:
    """The Typer application with the commands of every module in ``reliable_channel.cli.commands``; if one is named
    like ``command``, of that one only, because Typer examines all parameters of all commands."""
    app = typer.Typer(
        name="reliable-channel",
        help="Reliable channels of the Waku network on Spark: what was delivered, what was lost, and why.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP_NAMES},
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
        context.obj = config  # the others act by themselves: `run` looks for --debug

    modules = sorted(m.name for m in pkgutil.iter_modules(reliable_channel.cli.commands.__path__))
    named = (command or "").replace("-", "_")
    for module in [named] if named in modules else modules:
        importlib.import_module(f"reliable_channel.cli.commands.{module}").register(app)
    order = [name for names in PANELS.values() for name in names]
    panel = {name: title for title, names in PANELS.items() for name in names}
    registered: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for one in registered:
        one.rich_help_panel = panel[_name_of(one)]
    app.registered_commands.sort(key=lambda one: order.index(_name_of(one)))
    app.registered_groups.sort(key=lambda one: order.index(_name_of(one)))
    return app


def _name_of(one: CommandInfo | TyperInfo) -> str:
    return str(one.name or getattr(one.callback, "__name__", ""))


def _drop_type_of_flags(command: Any) -> Any:
    """The command with no type beside its flags in the help: a flag takes no value."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = " "
    names = command.context_class(command, help_option_names=HELP_NAMES)
    command.get_help_option(names).metavar = " "
    for inner in getattr(command, "commands", {}).values():
        _drop_type_of_flags(inner)
    return command


def _prepare_streams() -> None:
    """Make standard output and error take every text: one that was closed (``>&-``) discards it, and one that is not
    UTF-8 gets escapes for what it cannot represent. A standard input that was closed (``<&-``) is empty."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse_undecodable(arguments: list[str]) -> None:
    """Raise ``LocalError`` for an argument that is not text in UTF-8: no table, database or message can hold it."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise LocalError(
                f"The argument {argument!a} is not UTF-8.",
                "Use a UTF-8 locale (LC_ALL=C.UTF-8), and rename files whose names are not UTF-8.",
            )


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line (``sys.argv`` by default) and exit; never shows a stack trace unless ``--debug``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments or is_debugging()
    os.umask(os.umask(OWNERS_UMASK) | OWNERS_UMASK)  # Spark and the broker inherit it
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # pydantic would search all installed packages for some
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's idle threads spin, and no command multiplies matrices
    _prepare_streams()
    show_logs(debug)

    def run_command() -> None:
        _refuse_undecodable(arguments)
        with end_at_once():
            command = _drop_type_of_flags(typer.main.get_command(build(next(iter(arguments), None))))
        command(args=arguments, prog_name="reliable-channel")

    sys.exit(run_to_exit_code(run_command, "reliable-channel", debug))

"""The command groups of the console script, one module each.

A module here exposes ``register(app: typer.Typer) -> None`` and adds its commands there (or a sub-application with
``app.add_typer``). ``reliable_channel.cli`` registers every module of this package; no other file needs editing. Heavy
imports (pyspark, pandas, kafka, deltalake) belong inside the command functions: ``--help`` imports all modules.

A command takes ``context: typer.Context`` when it needs the configuration: ``read_settings(context)``.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.runtime.interrupts import end_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from reliable_channel.config import Settings


TablesOption = Annotated[
    Path | None,
    typer.Option("--tables", metavar="DIR", file_okay=False, help="Where the tables are; paths.data_dir by default."),
]
"""The option of every command that reads tables."""
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
"""The option of every command that lists something."""
MOST_SECONDS = 1e9
"""The longest wait that an option takes, 31 years: what threads cannot wait for would raise ``OverflowError``."""


def read_settings(context: typer.Context, tables: Path | None = None) -> Settings:
    """The effective configuration of a command line, with its tables at ``tables`` where that is given. Raises
    ``ConfigurationError`` naming file and key."""
    with end_at_once():
        from reliable_channel.config import load

        settings = load(context.find_root().obj)
    return settings if tables is None else move_tables(settings, tables)


def move_tables(settings: Settings, tables: Path) -> Settings:
    """The configuration with its tables in a directory, and the checkpoints beside them."""
    changed = {"data_dir": str(tables)}
    if (beside := tables.absolute().parent / "checkpoints").is_dir():  # as a run directory has them
        changed["checkpoint_dir"] = str(beside)
    return settings.model_copy(update={"paths": settings.paths.model_copy(update=changed)})


@contextmanager
def open_chain(settings: Settings, application: str = "reliable-channel") -> Iterator[SparkSession]:
    """Start Spark for the block, in which no other driver can run a query of the chain. Raises ``EnvironmentFault`` if
    one does already."""
    from reliable_channel.pipeline.runner.one_driver import hold_checkpoints
    from reliable_channel.pipeline.runner.queries import CHAIN
    from reliable_channel.runtime.spark import spark_session

    with hold_checkpoints(settings.paths, [query.name for query in CHAIN]):
        echo("Starting Spark …", err=True)
        with spark_session(settings, application) as spark:
            yield spark


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print what a program says that runs until it is stopped. Where nothing can be printed any more, as into a log on
    a full disk, on a terminal that was closed or to a reader that has ended, the program goes on without."""
    with suppress(OSError):
        typer.echo(text, err=err, nl=nl)


def files_of_package() -> list[Path]:
    """The jobs, notebooks and configurations that come with this package; no two have the same name."""
    from reliable_channel.config.loading import find_shipped

    patterns = {"conf": "*.*", "jobs": "[!_]*.py", "notebooks": "*.ipynb"}
    return sorted(file for folder, one in patterns.items() for file in Path(str(find_shipped("", folder))).glob(one))

"""The command groups of the console script, one module each.

A module here exposes ``register(app: typer.Typer) -> None`` and adds its commands there (or a sub-application with
``app.add_typer``). ``reliable_channel.cli`` registers every module of this package; no other file needs editing. Heavy
imports (pyspark, pandas, kafka, deltalake) belong inside the command functions: ``--help`` imports all modules.

A command takes ``context: typer.Context`` when it needs the configuration: ``invocation(context).settings()``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reliable_channel.runtime.interrupts import end_at_once

if TYPE_CHECKING:
    from reliable_channel.config import Settings


TablesOption = Annotated[
    Path | None, typer.Option("--tables", metavar="DIR", help="Where the tables are; paths.data_dir by default.")
]
"""The option of every command that reads tables."""
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
"""The option of every command that lists something."""
MOST_SECONDS = 1e9
"""The longest wait that an option takes, 31 years: what threads cannot wait for would raise ``OverflowError``."""


@dataclass
class Invocation:
    """The global options: which configuration file, and whether to show stack traces."""

    config: str | None = None
    debug: bool = False
    _settings: Settings | None = field(default=None, repr=False)

    def settings(self, tables: Path | None = None) -> Settings:
        """The effective configuration, read once, with its tables at ``tables`` where that is given, and the
        checkpoints beside them; raises ``ConfigurationError`` naming file and key."""
        if self._settings is None:
            with end_at_once():
                from reliable_channel.config import load

                self._settings = load(self.config)
        if tables is None:
            return self._settings
        changed = {"data_dir": str(tables)}
        if (beside := tables.absolute().parent / "checkpoints").is_dir():  # as a run directory has them
            changed["checkpoint_dir"] = str(beside)
        paths = self._settings.paths.model_copy(update=changed)
        return self._settings.model_copy(update={"paths": paths})


def files_of_package() -> list[Path]:
    """The jobs, notebooks and configurations that come with this package; no two have the same name."""
    from reliable_channel.config.loading import find_shipped

    patterns = {"conf": "*.*", "jobs": "[!_]*.py", "notebooks": "*.ipynb"}
    return sorted(file for folder, one in patterns.items() for file in Path(str(find_shipped("", folder))).glob(one))


def invocation(context: typer.Context) -> Invocation:
    """The invocation made from the global options of this command line."""
    current = context.find_object(Invocation)
    return current if current is not None else Invocation(config=os.environ.get("RELIABLE_CHANNEL_CONFIG"))

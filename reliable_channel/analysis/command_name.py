"""Returns the command with which the reader of a hint can start this program: its name, or its path if the name is not
found."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

NAME = "reliable-channel"


def command_name() -> str:
    """``reliable-channel`` where the shell finds this installation by that name, else the path of its script."""
    script = Path(sys.executable).with_name(NAME)
    on_path = shutil.which(NAME)
    if not script.exists() or (on_path is not None and Path(on_path).resolve() == script.resolve()):
        return NAME
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else str(script)

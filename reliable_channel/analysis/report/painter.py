"""Draws charts in a child process. The JavaScript engine takes half a second to start and holds Python's lock while it
draws (vl-convert 1.9), so a report starts it first and queries the tables meanwhile.

It receives specifications of Vega-Lite, so it can be started before the library that makes charts is loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

from reliable_channel.core.errors import EnvironmentFault

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("painter_child.py")))
"""``-P``: nothing is imported from the current directory."""
PATIENCE_S = 10.0
"""How long a process that was asked to end may take before it is killed."""


class Painter:
    """A process that draws, from the beginning of the ``with`` to its end. Charts are drawn one after the other."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._turns = ThreadPoolExecutor(1, "painter")

    def svg(self, specification: Mapping[str, Any]) -> Future[str]:
        """The SVG of a Vega-Lite specification whose texts are printable (``drawing.printable``), once it is drawn.
        Its result raises ``EnvironmentFault`` when it cannot be drawn."""
        return self._turns.submit(self._draw, json.dumps(specification))

    def _draw(self, line: str) -> str:
        to, back = cast("tuple[TextIO, TextIO]", (self._child.stdin, self._child.stdout))
        try:
            to.write(line + "\n")
            to.flush()
            answer = json.loads(back.readline() or "{}")
        except OSError:
            answer = {}
        if "svg" not in answer:
            why = answer.get("fault") or f"the process that draws ended with {self._child.wait(PATIENCE_S)}"
            raise EnvironmentFault(f"A chart cannot be drawn ({why}).", "Ask without --html: that needs no charts.")
        return str(answer["svg"])

    def __enter__(self) -> Painter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process; at once when there is an error."""
        if kind is not None:
            self._child.kill()
        self._turns.shutdown(cancel_futures=kind is not None)
        try:
            self._child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()

"""Runs a measured process: yields its output lines as they arrive, and reports a failure with its last output."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

_SAID_BYTES = 3_000


class Child:
    """A running ``python -m MODULE SPEC``. ``stdin`` stays open until :meth:`close_input`."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes], module: str) -> None:
        self._process, self._errors, self._module = process, errors, module

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield every line that is a JSON object, as it arrives; ends when the process closes its output."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def close_input(self) -> None:
        """Tell the process to end."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()

    def finish(self, patience_s: float) -> None:
        """Wait for the end. Raises ``RuntimeError`` with the last lines of its output if it failed."""
        self.close_input()
        if self._process.wait(patience_s) != 0:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-_SAID_BYTES:]
            raise RuntimeError(f"{self._module} ended with {self._process.returncode}: {said}")


@contextmanager
def child(module: str, spec: dict[str, Any]) -> Iterator[Child]:
    """Run the process for the duration of the block, which it does not outlive."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield Child(process, errors, module)
        finally:
            if process.poll() is None:
                process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
            process.wait()

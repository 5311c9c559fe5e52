"""Shows the progress of tasks longer than two seconds: a live bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_LINE_EVERY_S = 5.0

Advance = Callable[[int, str], None]
"""``advance(completed, detail)``: the total done so far, and the current step."""


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Advance]:
    """Show ``title`` on stderr with elapsed time, and ``completed/total`` if a total is known."""
    console = Console(stderr=True)
    started = time.monotonic()
    if console.is_terminal:
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30)]
        columns += [MofNCompleteColumn()] if total else []
        columns += [TimeElapsedColumn(), TextColumn("[dim]{task.fields[detail]}")]
        with Progress(*columns, console=console, transient=True) as bars:
            task = bars.add_task(title, total=total, detail="")
            yield lambda completed, detail: bars.update(task, completed=completed, detail=detail)
    else:
        console.print(f"{title} …", highlight=False, markup=False)
        last = started

        def advance(completed: int, detail: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _LINE_EVERY_S:
                last = now
                done = f"{completed}/{total}" if total else f"{now - started:.0f} s"
                console.print(f"{title}: {done} {detail}".rstrip(), highlight=False, markup=False)

        yield advance
    console.print(f"{title}: done in {time.monotonic() - started:.1f} s", highlight=False, markup=False)

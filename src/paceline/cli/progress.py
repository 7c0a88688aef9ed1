"""A progress bar on stderr for work on files; nothing where stderr is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Gives the function that is called with what was done, how much that makes, and how much there is."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def advance(what: str, done: int, total: int) -> None:
            if bar.tasks[0].total not in (None, total):  # the next stage of the same command
                bar.reset(task)
            bar.update(task, description=Text(what).plain, completed=done, total=total)

        yield advance

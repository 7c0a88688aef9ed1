"""Making things while others are used up: for what a GPU would have to wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
_PAUSE = 0.1


def ahead(items: Iterator[T], count: int) -> Generator[T]:
    """The same items in the same order, made by a thread of their own, at most `count` in advance.

    An error in `items` is raised where its item would have come. Closing the iterator, or leaving it behind,
    ends the thread; `items` is then left where it stands, up to `count` + 1 items beyond the last one used.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(count)
    closed = threading.Event()

    def put(entry: tuple[T | None, BaseException | None]) -> bool:
        while not closed.is_set():
            try:
                ready.put(entry, timeout=_PAUSE)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
        except BaseException as error:
            put((None, error))
        else:
            put((None, StopIteration()))

    thread = threading.Thread(target=make, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]  # None only beside an error, unless T itself has it
    finally:
        closed.set()
        thread.join()

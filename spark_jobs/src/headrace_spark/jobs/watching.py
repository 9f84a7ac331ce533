"""Signs of life of a stage whose tasks send, for `/healthz` (spark-writer.md 9): the driver hears nothing of a task
before it ends, but what tasks do leaves numbers in a database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from headrace_spark.database import StateDown
from headrace_spark.sinks.port import SinkDown

LOOK_S: Final = 2.0


@contextmanager
def watching(look: Callable[[], int], advanced: Callable[[], None]) -> Iterator[None]:
    """As long as the block lasts, `advanced` is told whenever `look` finds another number than before, and the first
    time. `look` may raise `StateDown` or `SinkDown`: then nothing is known, and it is asked again."""
    over = threading.Event()

    def watch() -> None:
        before: int | None = None
        while not over.wait(LOOK_S):
            with suppress(StateDown, SinkDown):
                now = look()
                if now != before:
                    advanced()
                before = now

    thread = threading.Thread(target=watch, name="headrace-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

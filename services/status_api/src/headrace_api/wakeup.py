"""Coroutines that wait until some thread says that something has changed."""

from __future__ import annotations

import asyncio
import contextlib


class Wakeup:
    """`notify` wakes all who wait at that moment; who looks, then waits at once, misses nothing."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Something has changed. From any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, seconds: float) -> None:
        """Until the next `notify`, at most `seconds`."""
        self._loop = asyncio.get_running_loop()
        event = self._event
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)

    def _wake(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

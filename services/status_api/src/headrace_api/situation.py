"""The situation of the process, from all that runs beside the event loop: is it ready, is it healthy, and why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace_api.progress import STALLED_S, Progress


class Mail(Protocol):
    """What a Mailbox tells."""

    alive_at: float

    def problem(self) -> str: ...


class Situation:
    """`progress` of the replica, `events` of the event log."""

    def __init__(self, progress: Callable[[], Progress], events: Callable[[], Progress], mail: Mail) -> None:
        self.progress = progress
        self._events = events
        self._mail = mail

    def no_writes(self) -> str:
        """Why writes are not possible now; empty if they are."""
        return self._mail.problem()

    def no_events(self) -> str:
        """Why there are no event streams now; empty if there are."""
        return self._events().why_not_ready

    @property
    def why_not_ready(self) -> str:
        """Why reads are not answered; empty once the replica has caught up, also when Kafka is away later."""
        return self.progress().why_not_ready

    def trouble(self, now: float) -> str:
        """Why the process is not healthy at `now` (time.monotonic()); empty when it is."""
        for name, progress in (("", self.progress()), ("events: ", self._events())):
            if found := progress.trouble(now):
                return name + found
        stuck = now - self._mail.alive_at
        return f"no replies are read for {stuck:.0f} s" if stuck > STALLED_S else ""

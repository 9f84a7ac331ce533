"""Whether connections get anywhere, or something in the session ends one after the other.

A packet that cannot be read, or a message for which the MQTT broker itself ends the connection, stays in a persistent
session: the broker sends it again, first, after each reconnect, and nothing behind it is ever reached. It cannot be
acknowledged, for Kafka does not have it (bridge.md 1.2), so a person has to take it out of the broker. The bridge names
the cause, is not ready, and tries more and more rarely.

A connection is *fruitless* if it ended within `SHORT_S` and until then nothing was acknowledged in either direction and
nothing became a dead letter. After `MANY` in a row the bridge is *stuck*, until a connection lasts or bears fruit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

SHORT_S = 10.0
MANY = 3


class Progress:
    """The connections of one bridge, one after the other. `clock`: monotonic s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None  # None: no connection
        self._had = 0
        self.in_a_row = 0
        self.cause = ""  # of the last one in the row
        self.fruitless: Counter[str] = Counter()  # by cause

    def connected(self, done: int) -> None:
        """A connection was accepted. `done`: messages that are settled for good, of all time."""
        self._since, self._had = self._clock(), done

    def lost(self, cause: str, done: int) -> None:
        """It has ended."""
        if self._bears_fruit(done):
            self.in_a_row, self.cause = 0, ""
        else:
            self.in_a_row += 1
            self.cause = cause
            self.fruitless[cause] += 1
        self._since = None

    def row(self, done: int) -> int:
        """Fruitless connections in a row, as of now: 0 as soon as this one is none."""
        return 0 if self._bears_fruit(done) else self.in_a_row

    def stuck(self, done: int) -> str:
        """What ends one connection after the other; empty if nothing does."""
        return self.cause if self.row(done) >= MANY else ""

    def _bears_fruit(self, done: int) -> bool:
        return self._since is not None and (done > self._had or self._clock() - self._since >= SHORT_S)

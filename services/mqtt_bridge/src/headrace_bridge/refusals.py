"""Which outbound record makes the broker close the connection: MQTT 3.1.1 has no other way to refuse one.

Such a record would be sent again after every reconnect, for ever. It is told from a fault of the network like this:
- Only a connection that the broker had accepted and that the other end closed counts, while the oldest record under way
  had been sent on it at most `SHORT_S` before.
- After two of them in a row with the same oldest record, what is under way is sent one by one, in order: the next one
  after the acknowledgement of the one before, the first one after a PINGRESP has shown that the connection works.
- A record that is lost for the third time in a row, alone and as the first one of its connection, is refused.
A connection that cannot be made, that the bridge gives up itself, or that was quiet for longer ends the row. Nothing of
this outlives the process: the next one counts anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from headrace_bridge.connection import ConnectionLost, Silence
from headrace_core.errors import HeadraceError

LOSSES = 3
SHORT_S = 5.0
Place = tuple[int, int]


def closed_by_peer(error: HeadraceError) -> bool:
    """Whether the other end ended the connection, and not the bridge, nor the kernel that waited for an answer."""
    if not isinstance(error, ConnectionLost) or isinstance(error, Silence):
        return False
    return error.__cause__ is None or isinstance(error.__cause__, ConnectionError)


class Suspicion:
    """What is known of the records under way, by partition and offset. `clock`: monotonic s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._suspect: Place | None = None
        self._losses = 0
        self._sent_at: dict[Place, float] = {}
        self._sent_here = 0
        self._works = False
        self._one_by_one: set[Place] = set()

    @property
    def careful(self) -> bool:
        """Whether records go one by one."""
        return bool(self._one_by_one)

    def connected(self) -> None:
        """A connection was accepted; nothing was sent on it yet."""
        self._sent_at.clear()
        self._sent_here = 0
        self._works = False

    def works(self) -> None:
        """PINGRESP came."""
        self._works = True

    def sent(self, record: Place) -> None:
        """It was sent on this connection."""
        self._sent_at[record] = self._clock()
        self._sent_here += 1

    def settled(self, record: Place) -> None:
        """It is not under way any more."""
        self._sent_at.pop(record, None)
        self._one_by_one.discard(record)
        if record == self._suspect:
            self._suspect, self._losses = None, 0

    def next_one(self, under_way: Iterable[Place]) -> Place | None:
        """What to send now, one by one; None: nothing yet."""
        if not self._works or self._sent_at:
            return None
        found = next((record for record in under_way if record in self._one_by_one), None)
        if found is None:
            self._one_by_one.clear()
        return found

    def unreachable(self) -> None:
        """No connection could be made, or it ended for a reason that no record can have."""
        self._suspect, self._losses = None, 0
        self._one_by_one.clear()
        self._sent_at.clear()

    def lost(self, under_way: list[Place]) -> Place | None:
        """The other end closed the connection; returns the record that is refused by that, if one is."""
        oldest = next((record for record in under_way if record in self._sent_at), None)
        if oldest is None:
            self._losses = 0  # nothing was under way here: no record is to blame
            return None
        if self._clock() - self._sent_at[oldest] > SHORT_S:
            self.unreachable()
            return None
        self._losses = self._losses + 1 if oldest == self._suspect else 1
        self._suspect = oldest
        if self.careful and self._losses >= LOSSES and self._sent_here == 1:
            return oldest
        if self._losses >= LOSSES - 1:
            self._one_by_one |= set(under_way)
        return None

"""The window of received and not yet acknowledged messages: acknowledge in order, never too early (bridge.md 1.2, 1.4).

A message is *outstanding* until Kafka has it (`settle`), and *in flight* until its acknowledgement was handed to the
connection (`take`). Acknowledgements leave in the order of arrival: a message waits for all before it.

When a connection ends, its packet ids die with it: a late delivery report must not acknowledge whatever has that id on
the next connection. The broker still owes us those messages and sends them again. They stay in flight, as what they
are, under `owed`, so

    received = acknowledged + in flight                                  (bridge.md 6)

at every moment: a message that comes again is not received twice. A packet id that is used anew without the duplicate
flag closes the old account: the broker knew our acknowledgement. So does the loss of the session.

QoS 2: a packet id is remembered from its PUBLISH until PUBREL, over connections of a session; a PUBLISH that repeats it
is bound to the first one's fate and not produced again. What a former process had given to Kafka comes in by
`remember` (see `ledger.py`). An id counts only for the same message: a broker that was killed and reads an older file
of its own may give it to another one.
"""

from __future__ import annotations

from collections import deque

from headrace_bridge.packets import Properties, Publish

PROPERTY_BYTES = 300
"""What Python and librdkafka need for a property beside its bytes."""


def size_of(properties: Properties) -> int:
    """Bytes in memory, about: those of many short properties are many times those on the wire."""
    values = [part for _, value in properties for part in (value if isinstance(value, tuple) else (value,))]
    return PROPERTY_BYTES * len(properties) + sum(len(value) for value in values if isinstance(value, bytes))


class Entry:
    """One arrival. `size` in bytes of topic, payload and properties; with QoS 2 `identity`, and `place`: partition and
    offset."""

    __slots__ = ("arrived_ms", "connection", "identity", "message", "packet_id", "place", "qos", "size")

    def __init__(self, message: Publish, size: int, arrived_ms: int, connection: int) -> None:
        self.message: Publish | None = message  # None = settled: Kafka has it, or its dead letter
        self.packet_id = message.packet_id
        self.qos = message.qos
        self.size = size
        self.arrived_ms = arrived_ms
        self.connection = connection
        self.place: tuple[str, int, int] | None = None
        self.identity = b""


class Window:
    """Counts and order of one client's messages. `limit` messages and `limit_bytes` make it full."""

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._connection = 0
        self._order: deque[Entry] = deque()
        self._owed: dict[int, int] = {}  # packet id to arrival in ms
        self._second: dict[int, Entry] = {}  # QoS 2 until PUBREL
        self._former_process: dict[int, bytes] = {}  # QoS 2 ids of it, with the message's identity
        self._stray = 0  # QoS 0 of former connections, not settled yet
        self._former = 0  # outstanding entries of former connections, any QoS
        self.outstanding = 0
        self.outstanding_bytes = 0
        self.received = 0
        self.redelivered = 0
        self.acknowledged = 0

    @property
    def in_flight(self) -> int:
        """Messages received and not acknowledged."""
        return len(self._order) + len(self._owed) + self._stray

    @property
    def room(self) -> int:
        """So many more may arrive now; 0 = full, stop reading. Bytes may be exceeded by the last message."""
        if self.outstanding_bytes >= self._limit_bytes:
            return 0
        return max(0, self._limit - len(self._order) - self._former)

    @property
    def oldest_ms(self) -> int | None:
        """First arrival of the oldest message in flight; None if there is none."""
        oldest = [self._order[0].arrived_ms] if self._order else []
        return min([*oldest, *self._owed.values()], default=None)

    def arrived(self, message: Publish, now_ms: int, identity: bytes = b"") -> tuple[Entry, bool]:
        """A PUBLISH came. Returns its entry, and whether it must be produced (False: a repeat of QoS 2).

        `identity` is that of the message, needed for QoS 2 alone.
        """
        if self._owed:
            self._count_arrival(message)
        else:
            self.received += 1
        if message.qos == 2 and (first := self._first(message, identity, now_ms)) is not None:
            if first.message is not None and first.connection != self._connection:
                self._former -= 1
            first.connection = self._connection
            self._order.append(first)
            return first, False
        size = len(message.topic) + len(message.payload)
        if message.properties:
            size += size_of(message.properties)
        entry = Entry(message, size, now_ms, self._connection)
        if message.qos == 2:
            entry.identity = identity
            self._second[message.packet_id] = entry
        self._order.append(entry)
        self.outstanding += 1
        self.outstanding_bytes += size
        return entry, True

    def _count_arrival(self, message: Publish) -> None:
        if message.packet_id in self._owed:
            del self._owed[message.packet_id]
            if message.dup:
                self.redelivered += 1
                return
            self.acknowledged += 1
        self.received += 1

    def _first(self, message: Publish, identity: bytes, now_ms: int) -> Entry | None:
        """What this PUBLISH repeats, if it does."""
        known = self._former_process.pop(message.packet_id, None)
        if known is not None and known == identity:
            entry = Entry(message, 0, now_ms, self._connection)
            entry.message, entry.identity = None, identity
            self._second[message.packet_id] = entry
        first = self._second.get(message.packet_id)
        return first if first is not None and first.identity == identity else None

    def remember(self, packet_id: int, identity: bytes) -> None:
        """A former process gave Kafka this QoS 2 message of the session; PUBREL did not come yet."""
        self._former_process[packet_id] = identity

    def settle(self, entry: Entry) -> None:
        """Kafka has it. A second call for the same entry changes nothing."""
        if entry.message is None:
            return
        entry.message = None
        self.outstanding -= 1
        self.outstanding_bytes -= entry.size
        if entry.connection != self._connection:
            self._former -= 1
            if not entry.qos:
                self._stray -= 1
                self.acknowledged += 1

    def take(self) -> list[Entry]:
        """Remove and return what may be acknowledged now, in order of arrival. QoS 0 is among it."""
        taken: list[Entry] = []
        order = self._order
        while order and order[0].message is None:
            taken.append(order.popleft())
        self.acknowledged += len(taken)
        return taken

    def released(self, packet_id: int) -> None:
        """PUBREL came: the id may be used anew."""
        self._second.pop(packet_id, None)
        self._former_process.pop(packet_id, None)

    def disconnected(self) -> None:
        """The connection ended: nothing of it may be acknowledged any more."""
        self._connection += 1
        for entry in self._order:
            self._former += entry.message is not None
            if entry.qos and entry.packet_id not in self._owed:
                self._owed[entry.packet_id] = entry.arrived_ms
            elif entry.qos or entry.message is None:
                self.acknowledged += 1
            else:
                self._stray += 1
        self._order.clear()

    def session_lost(self) -> None:
        """The broker has forgotten us: it owes nothing, and its packet ids start anew."""
        self.acknowledged += len(self._owed)
        self._owed.clear()
        self._second.clear()
        self._former_process.clear()

"""The bridge's one loop: read MQTT, serve Kafka's reports, acknowledge, publish; and what happens around a connection.

One thread does it all, so nothing needs a lock, and what it counts agrees at the end of every turn, when a snapshot for
the metrics is made.

| state | leaves it when |
|---|---|
| away | connected; tried again for ever, with a jittered pause of at most 30 s |
| connected | CONNACK; subscribes if it must, but reads at once: queued messages come before SUBACK (bridge.md 8) |
| ready | SUBACK |
| stopping | SIGTERM: reads no more; in-flight messages get 10 s, then DISCONNECT, the session stays |
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, field

import structlog

from headrace_bridge import packets
from headrace_bridge.connection import (
    ENDED,
    Connection,
    ConnectionLost,
    DisconnectedByBroker,
    SubscriptionRefused,
    Target,
)
from headrace_bridge.kafka import Outlet
from headrace_bridge.outbound import FAILED, Outbound
from headrace_bridge.packets import (
    PROTOCOL_ERROR,
    PUBACK,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Ack,
    Connack,
    Disconnected,
    MalformedPacket,
    Packet,
    Pong,
    Publish,
)  # fmt: skip
from headrace_bridge.progress import Progress
from headrace_bridge.receive import Receiver
from headrace_bridge.subscriptions import FilterMemory

log = structlog.get_logger(__name__)

SUBSCRIBE_ID, UNSUBSCRIBE_ID = 1, 2
IDLE_S, BUSY_S, WAITING_S, FULL_S = 0.1, 0.003, 0.01, 0.05
GATHER_S, SMALL_READ = 0.004, 64 * 1024
SNAPSHOT_S = 0.05
STALLED_S = 60.0
"""Longer than any turn: one that connects waits for TCP, TLS and CONNACK, 5 s each."""
OUTBOUND_S = 0.01  # until `outbound` is asked again when it had nothing: asking costs as much as ten messages
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
PART_S = 5.0
"""For messages in flight when a malformed packet comes."""


@dataclass(frozen=True)
class Snapshot:
    """What the HTTP server shows; made at the end of a turn, `made_s` on the monotonic clock. Ages in ms."""

    made_s: float | None = None  # None: the loop does not run yet
    connected: bool = False
    subscribed: bool = False
    kafka_up: bool = False
    numbers: dict[str, int] = field(default_factory=dict)
    by_qos: tuple[int, ...] = (0, 0, 0)
    dead_letters: dict[str, int] = field(default_factory=dict)
    latency: tuple[int, ...] = ()
    fruitless: dict[str, int] = field(default_factory=dict)
    stuck: str = ""  # what ends one connection after the other, see progress.py
    session_expiry_s: int | None = None  # as the broker granted it last; None: it never said

    @property
    def alive(self) -> bool:
        """Whether the loop still turns; it does with both ends away, too."""
        return self.made_s is None or time.monotonic() - self.made_s < STALLED_S

    @property
    def ready(self) -> bool:
        """Both ends are there and all filters subscribed (bridge.md 6), and connections get anywhere."""
        return self.connected and self.subscribed and self.kafka_up and not self.stuck


def blame(error: ConnectionLost | MalformedPacket) -> str:
    """What can be to blame if one connection after the other ends like this, in words."""
    match error:
        case SubscriptionRefused():
            cause = "the broker does not permit the filters"
        case MalformedPacket():
            cause = "what comes first in the session"
        case DisconnectedByBroker():
            cause = "what the reason code says, or what comes first in the session"
        case _:
            cause = "the network, the broker, another client with this client id, or what comes first in the session"
    return f"connections end before anything is acknowledged; to blame: {cause}"


class Bridge:
    """Build it, `run` it; `stop` may be called by a signal handler."""

    def __init__(
        self, target: Target, subscriptions: dict[str, int], memory: FilterMemory, receiver: Receiver,
        outlet: Outlet, outbound: Outbound | None, stop_s: float,
    ) -> None:  # fmt: skip
        self._target = target
        self._subscriptions = subscriptions
        self._memory = memory
        self._receiver = receiver
        self._outlet = outlet
        self._outbound = outbound
        self._stop_s = stop_s
        self._connection: Connection | None = None
        self._session_expiry_s: int | None = None
        self._subscribed = False
        self._confirmed = False  # this process has SUBACK for the session that the broker has
        self._backlog = False
        self._next_read = 0.0
        self._next_outbound = 0.0
        self._snapshot_at = 0.0
        self._stopping = False
        self._stop_by = 0.0
        self._failures = 0
        self._progress = Progress()
        self._counts = {"connects": 0, "connection_losses": 0, "decode_errors": 0, "sessions_lost": 0}
        self.snapshot = Snapshot()

    def stop(self) -> None:
        """Ask `run` to end: what is in flight has `stop_s` from now on, whatever the loop waits for just now."""
        if not self._stopping:
            self._stop_by = time.monotonic() + self._stop_s
        self._stopping = True

    def run(self) -> None:
        """Until `stop`. Raises KafkaFailed."""
        while not self._stopping:
            try:
                self._connect()
                while not self._stopping:
                    self._turn()
            except (ConnectionLost, MalformedPacket) as error:
                self._lost(error)
                self._take_snapshot(at_once=True)
                self._pause()
        self._finish()
        self._take_snapshot(at_once=True)

    def _connect(self) -> None:
        self._connection = connection = Connection.connect(self._target)
        self._counts["connects"] += 1
        self._backlog = True  # packets may have come together with CONNACK
        present = connection.connack.session_present
        log.info("connected", host=self._target.host, port=self._target.port, session_present=present)
        self._note_expiry(connection.session_expiry_s)
        if not present:
            self._session_lost()
        self._progress.connected(self._done)  # what a lost session no longer owes is no progress
        gone = self._memory.load() - set(self._subscriptions)  # of which no UNSUBACK has come
        self._subscribed = self._confirmed and not gone
        if not self._subscribed:
            self._subscribe(connection)
        if self._outbound is not None:
            connection.send(self._outbound.connected(connection.connack))
        self._take_snapshot(at_once=True)

    def _session_lost(self) -> None:
        """The broker has no session of this client id: a first start, or what it had queued since is gone there."""
        if self._memory.load():
            self._counts["sessions_lost"] += 1
            log.warning("the broker has no session any more, what it had queued for it is lost")
        self._receiver.session_lost()
        self._confirmed = False

    def _note_expiry(self, granted_s: int | None) -> None:
        """An outage that is longer than what the broker has granted loses what it had queued for us."""
        self._session_expiry_s = granted_s
        if granted_s is not None and granted_s < self._target.session_expiry_s:
            asked_s = self._target.session_expiry_s
            log.warning("the broker grants a shorter session expiry", granted_s=granted_s, asked_s=asked_s)

    def _subscribe(self, connection: Connection) -> None:
        wanted = set(self._subscriptions)
        removed = sorted(self._memory.load() - wanted)
        self._memory.save(wanted | set(removed))
        if removed:
            log.info("unsubscribing", filters=removed)
            connection.send(packets.unsubscribe(UNSUBSCRIBE_ID, removed, v5=self._target.v5))
        connection.send(packets.subscribe(SUBSCRIBE_ID, self._subscriptions, v5=self._target.v5))

    def _turn(self) -> None:
        connection, receiver = self._connection, self._receiver
        assert connection is not None
        room = receiver.window.room
        may_read = connection.may_read and not (self._backlog and room)
        got = self._read(connection, room) if may_read and time.monotonic() >= self._next_read else 0
        if room and (got or self._backlog):
            self._take(connection, room)
        self._serve(connection, room, fresh=bool(got or self._backlog))
        connection.keep_alive(reading=may_read)
        self._take_snapshot()

    def _read(self, connection: Connection, room: int) -> int:
        """Read if there is something; after little, let more gather before the next time (bridge.md 8)."""
        busy = self._receiver.window.outstanding or not room
        if not connection.wait(0 if busy else IDLE_S):
            return 0
        got = connection.receive()
        self._next_read = time.monotonic() + GATHER_S if got < SMALL_READ else 0.0
        return got

    def _take(self, connection: Connection, room: int) -> None:
        """Handle the packets that there are, as far as there is room."""
        receiver = self._receiver
        taken = connection.decoder.take(room)
        self._backlog = len(taken) == room
        receiver.begin()
        publish = receiver.publish
        for packet in taken:
            if type(packet) is Publish:
                publish(packet)
            else:
                self._handle(packet)
        connection.decoder.check()

    def _serve(self, connection: Connection, room: int, *, fresh: bool) -> None:
        """Hear Kafka's reports until it is time to read again, and acknowledge what they settle."""
        receiver, outlet = self._receiver, self._outlet
        if not receiver.window.outstanding:
            outlet.poll(0)
        else:
            outlet.poll(FULL_S if not room else BUSY_S if fresh else WAITING_S)
        connection.send(receiver.acknowledgements())
        now = time.monotonic()
        if self._outbound is not None and now >= self._next_outbound:
            packets_out = self._outbound.turn()
            connection.send(packets_out)
            self._next_outbound = now if packets_out else now + OUTBOUND_S
        left = self._next_read - now
        if left > 0:
            (outlet.poll if receiver.window.outstanding else time.sleep)(left)
            connection.send(receiver.acknowledgements())

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Ack(kind=kind) if kind == PUBACK:
                if self._outbound is not None:
                    self._outbound.acknowledged(packet)
            case Ack(kind=kind) if kind == PUBREL:
                assert self._connection is not None
                self._connection.send(self._receiver.release(packet.packet_id))
            case Ack(kind=kind) if kind == SUBACK:
                self._suback(packet)
            case Ack(kind=kind) if kind == UNSUBACK:
                self._unsuback(packet)
            case Ack(kind=kind):
                raise MalformedPacket(f"a packet of kind {kind} that answers nothing", PROTOCOL_ERROR)
            case Connack():
                raise MalformedPacket("a second CONNACK", PROTOCOL_ERROR)
            case Disconnected():
                reason = ENDED.get(packet.code, "see MQTT 5, 3.14.2.1")
                raise DisconnectedByBroker(f"the broker disconnects with reason code {packet.code:#x}: {reason}")
            case Pong():
                if self._outbound is not None:
                    self._outbound.suspicion.works()
            case Publish():
                pass

    def _suback(self, ack: Ack) -> None:
        refused = [name for name, code in zip(self._subscriptions, ack.codes, strict=False) if code >= FAILED]
        if refused or len(ack.codes) != len(self._subscriptions):
            raise SubscriptionRefused(f"subscriptions refused: {refused}, codes {ack.codes.hex()}")
        lower = {n: code for (n, qos), code in zip(self._subscriptions.items(), ack.codes, strict=True) if code < qos}
        if lower:
            log.warning("the broker grants a lower QoS", filters=lower)
        self._subscribed = True
        self._confirmed = True
        self._failures = 0
        log.info("subscribed", filters=self._subscriptions)

    def _unsuback(self, ack: Ack) -> None:
        """Forget what is gone; what the broker did not remove is asked for again at the next connect."""
        if any(code >= FAILED for code in ack.codes):
            log.warning("unsubscribing refused", codes=ack.codes.hex())
        else:
            self._memory.save(set(self._subscriptions))

    def _lost(self, error: ConnectionLost | MalformedPacket) -> None:
        packet = {"packet": error.start.hex()} if isinstance(error, MalformedPacket) and error.start else {}
        log.warning("connection lost", error=str(error), code=error.code, **packet)
        if self._outbound is not None:
            self._outbound.lost(error if self._connection is not None else None)
        if self._connection is None:
            return
        self._counts["connection_losses"] += 1
        if self._subscribed:
            self._failures = 0
        if isinstance(error, MalformedPacket):
            self._counts["decode_errors"] += 1
            self._part(error.reason)
        self._connection.abort()
        self._connection = None
        self._subscribed = False
        self._backlog = False
        self._progress.lost(error.code, self._done)
        self._receiver.window.disconnected()
        if stuck := self._progress.stuck(self._done):
            log.error(
                "no progress", detail=blame(error), cause=stuck, in_a_row=self._progress.in_a_row, error=str(error)
            )

    def _part(self, reason: int) -> None:
        """After a malformed packet: acknowledge what came before it, or each reconnect would produce it once more."""
        assert self._connection is not None
        with contextlib.suppress(ConnectionLost):
            self._settle(PART_S)
            self._connection.close(reason)

    @property
    def _done(self) -> int:
        """Messages that are settled for good, in both directions."""
        letters = self._receiver.dead_letters.total()
        if self._outbound is not None:
            letters += self._outbound.acked + self._outbound.dead_letters.total()
        return self._receiver.window.acknowledged + letters

    def _pause(self) -> None:
        tries = min(10, max(self._failures, self._progress.in_a_row - 1))
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**tries) * random.uniform(0.5, 1)
        self._failures += 1
        until = time.monotonic() + pause
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._outlet.poll(min(left, WAITING_S))
            self._take_snapshot()
            if not self._outlet.queued:
                time.sleep(min(left, BUSY_S))

    def _finish(self) -> None:
        window = self._receiver.window
        log.info("stopping", in_flight=window.in_flight)
        try:
            self._settle(self._stop_by - time.monotonic())
            if self._connection is not None:
                self._connection.close()
        except ConnectionLost as error:
            log.warning("connection lost", error=str(error), code=error.code)
        if self._outbound is not None:
            self._outbound.close()
        log.info("stopped", in_flight=window.in_flight, received=window.received, acknowledged=window.acknowledged)

    def _settle(self, seconds: float) -> None:
        """Wait for Kafka's reports, so long at most, and acknowledge what they settle."""
        window, deadline = self._receiver.window, time.monotonic() + seconds
        while window.outstanding and time.monotonic() < deadline:
            self._outlet.poll(BUSY_S)
            self._take_snapshot()
            if self._connection is not None:
                self._connection.send(self._receiver.acknowledgements())
        if self._connection is not None:
            self._connection.send(self._receiver.acknowledgements())

    def _take_snapshot(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._snapshot_at < SNAPSHOT_S:
            return
        self._snapshot_at = now
        receiver, window, outbound = self._receiver, self._receiver.window, self._outbound
        oldest = window.oldest_ms
        numbers = {
            **self._counts, "reconnects": max(0, self._counts["connects"] - 1),
            "received": window.received, "acknowledged": window.acknowledged,
            "in_flight": window.in_flight, "in_flight_bytes": window.outstanding_bytes,
            "oldest_arrival_ms": oldest or 0, "redelivered": window.redelivered, "ignored": receiver.ignored,
            "produced": self._outlet.produced, "retries": self._outlet.retries, "kafka_queue": self._outlet.queued,
            "latency_sum_ms": receiver.latency_sum_ms,
            "publish_sent": outbound.sent if outbound else 0, "publish_acked": outbound.acked if outbound else 0,
            "publish_in_flight": outbound.in_flight if outbound else 0,
            "fruitless_in_a_row": self._progress.row(self._done),
        }  # fmt: skip
        self.snapshot = Snapshot(
            now, self._connection is not None, self._subscribed, self._outlet.up, numbers, tuple(receiver.by_qos),
            dict(receiver.dead_letters + outbound.dead_letters if outbound else receiver.dead_letters),
            tuple(receiver.latency), dict(self._progress.fruitless), self._progress.stuck(self._done),
            self._session_expiry_s,
        )  # fmt: skip

"""Kafka out, MQTT in: `outbound` is published retained with QoS 1, committed after PUBACK (bridge.md 4).

Records of a topic share a partition (its key is the MQTT topic), are published in order on one connection, and after a
reconnect are published again in the same order: a topic's last retained message is the last of its records. What is
under way stays within the Receive Maximum of the connection that there is, which may be lower than the last one's: what
is above it is published again when there is room, before anything new. A record
that no broker takes (no topic name, larger than the broker's packets, refused by it, if need be by closing the
connection: `refusals.py`) becomes a dead letter and is committed when Kafka has that.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace_bridge import packets
from headrace_bridge.commits import Commits
from headrace_bridge.kafka import Outlet
from headrace_bridge.packets import MAXIMUM_PACKET_SIZE, RECEIVE_MAXIMUM, Ack, Connack
from headrace_bridge.record import DEAD_LETTER, MOST_KEY_BYTES, Record, root_of, shown
from headrace_bridge.refusals import LOSSES, Suspicion, closed_by_peer
from headrace_core.errors import HeadraceError

log = structlog.get_logger(__name__)

OUTBOUND = "outbound"
COMMIT_S = 0.2
NO_LIMIT = 268_435_455
FAILED = 0x80  # first reason code that means failure
SUBSCRIPTION_IDS = 8  # packet ids below are left to SUBSCRIBE and UNSUBSCRIBE


class Outbound:
    """The outgoing half. Everything happens in the caller's thread, in `turn` and `acknowledged`."""

    def __init__(self, consumer: Consumer, outlet: Outlet, *, prefix: str, window: int, v5: bool) -> None:
        self._consumer = consumer
        self._outlet = outlet
        self._prefix = prefix
        self._topic = prefix + OUTBOUND
        self._window = window
        self._v5 = v5
        self._commits = Commits()
        self._open: dict[int, Message] = {}  # by packet id, in order of publishing
        self._again: deque[int] = deque()  # of them, what this connection has not been given yet
        self._next_id = SUBSCRIPTION_IDS
        self._committed_at = 0.0
        self._room = window
        self._largest = NO_LIMIT
        self._dup = False
        self.suspicion = Suspicion()
        self.sent = 0
        self.acked = 0
        self.dead_letters: Counter[str] = Counter()
        consumer.subscribe([self._topic], on_revoke=self._revoked, on_lost=self._revoked)

    @property
    def in_flight(self) -> int:
        """Published and not acknowledged."""
        return len(self._open)

    def connected(self, connack: Connack) -> bytes:
        """A connection is there: what the broker's limits are; returns what must be published again."""
        self._room = min(self._window, connack.number(RECEIVE_MAXIMUM, 65_535))
        self._largest = connack.number(MAXIMUM_PACKET_SIZE, NO_LIMIT)
        self._dup = connack.session_present
        self.suspicion.connected()
        for packet_id, record in list(self._open.items()):
            if problem := self._problem(record):  # the broker's limit may be another one now
                self._take_out(packet_id)
                self._bury(record, *problem)
        self._again.clear()
        if self.suspicion.careful:
            return packets.PINGREQ_BYTES
        self._again.extend(self._open)
        return self._repeats()

    def _repeats(self) -> bytes:
        """What was under way on another connection, as far as there is room on this one."""
        out, again = [], self._again
        while again and len(self._open) - len(again) < self._room:
            packet_id = again.popleft()
            out.append(self._publish(packet_id, self._open[packet_id], dup=self._dup))
        return b"".join(out)

    def lost(self, error: HeadraceError | None) -> None:
        """The connection has ended; None: there was none."""
        if error is None or not closed_by_peer(error):
            self.suspicion.unreachable()
            return
        places = {place(record): packet_id for packet_id, record in self._open.items()}
        refused = self.suspicion.lost(list(places))
        if refused is not None:
            detail = f"the broker closed the connection {LOSSES} times when it was published, at last alone: {error}"
            self._bury(self._take_out(places[refused]), "outbound_refused", detail)

    def _take_out(self, packet_id: int) -> Message:
        record = self._open.pop(packet_id)
        if packet_id in self._again:
            self._again.remove(packet_id)
        self.suspicion.settled(place(record))
        return record

    def turn(self) -> bytes:
        """Read records while there is room, commit what may be; returns packets to send."""
        if self.suspicion.careful:
            self._commit()
            return self._one_alone()
        out = [self._repeats()]
        for record in self._read(self._room - len(self._open)):
            partition, offset = place(record)
            self._commits.sent(partition, offset)
            problem = self._problem(record)
            if problem:
                self._bury(record, *problem)
                continue
            packet_id = self._free_id()
            self._open[packet_id] = record
            out.append(self._publish(packet_id, record))
        self._commit()
        return b"".join(out)

    def _one_alone(self) -> bytes:
        places = {place(record): packet_id for packet_id, record in self._open.items()}
        one = self.suspicion.next_one(places)
        return b"" if one is None else self._publish(places[one], self._open[places[one]], dup=self._dup)

    def _read(self, room: int) -> list[Message]:
        if room <= 0:
            return []
        read = []
        for record in self._consumer.consume(room, 0):
            error = record.error()
            if error is None:
                read.append(record)
            elif error.code() != KafkaError._PARTITION_EOF:
                log.warning("outbound", error=str(error))
        return read

    def _publish(self, packet_id: int, record: Message, *, dup: bool = False) -> bytes:
        self.sent += 1
        self.suspicion.sent(place(record))
        return packets.publish(
            as_bytes(record.key()), as_bytes(record.value()), packet_id, retain=True, dup=dup, v5=self._v5
        )  # fmt: skip

    def _free_id(self) -> int:
        while True:
            self._next_id = self._next_id + 1 if self._next_id < 0xFFFF else SUBSCRIPTION_IDS
            if self._next_id not in self._open:
                return self._next_id

    def _problem(self, record: Message) -> tuple[str, str] | None:
        key = as_bytes(record.key())
        if problem := topic_problem(key):
            return "invalid_topic", problem
        size = packets.publish_size(len(key), len(as_bytes(record.value())), v5=self._v5)
        if size > self._largest:
            return "too_large", f"a packet of {size} bytes, the broker takes {self._largest}"
        return None

    def acknowledged(self, ack: Ack) -> None:
        """PUBACK came."""
        if ack.packet_id not in self._open:
            return
        record = self._take_out(ack.packet_id)
        if ack.codes[0] >= FAILED:
            self._bury(record, "refused_by_broker", f"reason code {ack.codes[0]:#x}")
            return
        self.acked += 1
        self._commits.done(*place(record))

    def _bury(self, record: Message, reason: str, detail: str) -> None:
        partition, offset = place(record)
        key = as_bytes(record.key())
        log.warning("dead letter", reason=reason, detail=detail, partition=partition, offset=offset)
        now_ms = time.time_ns() // 1_000_000
        document = {
            "reason": reason, "detail": detail, "root": root_of(key).decode(errors="backslashreplace")[:1024],
            "topic": key.decode(errors="backslashreplace")[:65_536], "receipt_time": record.timestamp()[1],
            "lost_at": now_ms, **shown(as_bytes(record.value())),
        }  # fmt: skip
        headers = [("id", b"bridge-outbound:%d:%d:0" % (partition, offset)), ("stage", b"bridge-outbound")]
        kept = None if record.key() is None else key[:MOST_KEY_BYTES]
        letter = Record(self._prefix + DEAD_LETTER, kept, msgspec.json.encode(document), headers)

        def buried(_reason: str | None, _detail: str) -> None:
            self.dead_letters[reason] += 1
            self._commits.done(partition, offset)

        self._outlet.send(letter, buried, surely=True)

    def _commit(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._committed_at < COMMIT_S:
            return
        self._committed_at = now
        ready = [TopicPartition(self._topic, partition, offset) for partition, offset in self._commits.take().items()]
        if ready:
            try:
                self._consumer.commit(offsets=ready, asynchronous=not at_once)
            except KafkaException as error:
                log.warning("commit", error=str(error.args[0]))

    def _revoked(self, _: Consumer, partitions: list[Any]) -> None:
        self._commit(at_once=True)
        for gone in partitions:
            self._commits.forget(gone.partition)
            for packet_id in [i for i, record in self._open.items() if record.partition() == gone.partition]:
                self._take_out(packet_id)

    def close(self) -> None:
        """Commit and leave the group."""
        self._commit(at_once=True)
        self._consumer.close()


def consumer(base: dict[str, str], prefix: str) -> Consumer:
    """The consumer of `outbound`; bridges of one prefix share its partitions."""
    return Consumer(
        {
            **base, "group.id": f"{prefix}bridge.outbound", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "allow.auto.create.topics": False, "log_level": 2,
            "topic.metadata.refresh.interval.ms": 5000, "session.timeout.ms": 10_000,
            "queued.max.messages.kbytes": 16 * 1024, "fetch.queue.backoff.ms": 10,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )  # fmt: skip


def place(record: Message) -> tuple[int, int]:
    """Partition and offset."""
    partition, offset = record.partition(), record.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def as_bytes(value: bytes | str | None) -> bytes:
    """Key or value; nothing is empty."""
    return value.encode() if isinstance(value, str) else value or b""


def topic_problem(topic: bytes) -> str:
    """Why this is no topic to publish to; empty if it is one."""
    if not topic or len(topic) > 65_535:
        return "a topic has 1 to 65,535 bytes"
    if any(sign in topic for sign in (b"+", b"#", b"\0")) or topic.startswith(b"$"):
        return "a topic has no wildcard, no NUL, and no $ at its start"
    try:
        topic.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return ""

"""An MQTT broker whose every byte the test chooses, and a Kafka that answers when the test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from confluent_kafka import KafkaError

from headrace_bridge.kafka import Done, Report
from headrace_bridge.packets import text, variable
from headrace_bridge.record import Headers, Record

CONNACK = b"\x20\x03\x00\x00\x00"
CONNACK_PRESENT = b"\x20\x03\x01\x00\x00"
CONNACK_3, SUBACK_3 = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01"
SUBACK = b"\x90\x04\x00\x01\x00\x01"


def publish(
    topic: bytes, payload: bytes, packet_id: int = 0, *, qos: int = 1, dup: bool = False, v5: bool = True
) -> bytes:  # fmt: skip
    """A PUBLISH from the broker, in MQTT 5 without properties."""
    body = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + b"\0" * v5 + payload
    return bytes((0x30 | dup << 3 | qos << 1,)) + variable(len(body)) + body


class ScriptedBroker:
    """Listens; each accepted connection is played by the test."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(10)
        self.port: int = self._listener.getsockname()[1]
        self._peers: list[Peer] = []  # a forgotten one would be closed

    def accept(self, connack: bytes = CONNACK, suback: bytes = SUBACK, *, v5: bool = True) -> Peer:
        """The next connection, greeted."""
        if not v5:
            connack, suback = (CONNACK_3, SUBACK_3) if connack == CONNACK else (connack, suback)
        sock, _ = self._listener.accept()
        peer = Peer(sock)
        self._peers.append(peer)
        peer.connect = peer.packet()
        peer.send(connack)
        if connack in (CONNACK, CONNACK_3):
            assert peer.packet()[0] == 0x82
            peer.send(suback)
        return peer

    def close(self) -> None:
        self._listener.close()
        for peer in self._peers:
            peer.sock.close()


class Peer:
    """The bridge's connection as the broker sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(10)
        self.connect = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def packet(self) -> bytes:
        """The next packet; empty at the end of the stream."""
        head = self.sock.recv(1)
        if not head:
            return b""
        length = shift = 0
        while True:
            digit = self.sock.recv(1)[0]
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
        body = b""
        while len(body) < length:
            body += self.sock.recv(length - len(body))
        return head + body

    def acknowledgement(self) -> bytes:
        """The next packet that is no PINGREQ."""
        while (packet := self.packet()) == b"\xc0":
            continue
        return packet

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.sock.close()


CODES = {"invalid_record": KafkaError.INVALID_RECORD, "away": KafkaError._TRANSPORT}


class Refused:
    """A KafkaError as a delivery report has it."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def fatal(self) -> bool:
        return False

    def code(self) -> int:
        return CODES[self._reason]

    def str(self) -> str:
        return "why"


class Delivered:
    """A report's message."""

    def __init__(self, topic: str) -> None:
        self.topic = lambda: topic
        self.partition = lambda: 0
        self.offset = lambda: 0


class FakeOutlet:
    """Keeps what it was given; answers at once, or when `answer` is called by the loop's `poll`."""

    def __init__(self) -> None:
        self.sent: list[Record] = []
        self.surely: list[bool] = []
        self.holding = False
        self.one_in_s = 0.0  # not 0: each `poll` takes so long and answers one record
        self.up = True
        self.retries = 0
        self.produced = 0
        self.reasons: dict[bytes, str] = {}  # permanent errors by payload
        self._open: list[tuple[Record, Done]] = []

    @property
    def queued(self) -> int:
        return len(self._open)

    def produce(self, topic: str, value: bytes, key: bytes | None, report: Report, headers: Headers) -> None:
        def done(reason: str | None, _: str) -> None:
            self.produced -= 1  # who gives a report counts itself
            report(None if reason is None else Refused(reason), Delivered(topic))

        self.send(Record(topic, key, value, headers), done)

    def fatal(self, error: Refused) -> bool:
        return error.fatal()

    def later(self, again: Callable[[], None], _why: str) -> None:
        self.retries += 1
        again()

    def send(self, record: Record, done: Done, *, surely: bool = False) -> None:
        self.sent.append(record)
        self.surely.append(surely)
        self._open.append((record, done))

    def poll(self, seconds: float) -> None:
        if self.holding:
            threading.Event().wait(seconds)
            return
        if self.one_in_s:
            threading.Event().wait(self.one_in_s)
        for _ in range(min(1, len(self._open)) if self.one_in_s else len(self._open)):
            record, done = self._open.pop(0)
            self.produced += 1
            done(self.reasons.pop(record.value, None) if record.topic != "p.dead-letter" else None, "why")

    def values(self, topic: str = "p.raw") -> list[bytes]:
        return [record.value for record in self.sent if record.topic == topic]


def run(target: Callable[[], None]) -> threading.Thread:
    """Run in a thread."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread

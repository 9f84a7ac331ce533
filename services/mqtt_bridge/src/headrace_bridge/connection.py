"""One connection to the MQTT broker: socket, TLS, keep-alive, and an end that loses no acknowledgement (bridge.md 1.5).

Blocking only while connecting; then the socket does not block and the owner's loop says when to read. A full bridge
goes on reading into a reserve, so that it hears PINGRESP and notices a connection that is half open. With the reserve
full too (a broker that does not keep to Receive Maximum), not reading holds the broker back; silence does not count
then, and a peer that is gone is noticed by the kernel, which waits for the acknowledgement of our PINGREQs
(TCP_USER_TIMEOUT).

The end (bridge.md 8): closing a socket with unread input makes the kernel reset the connection, and the broker drops
acknowledgements it had not read. So: DISCONNECT, shut the sending side, read to the end, close.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from dataclasses import dataclass

from headrace_bridge import packets
from headrace_bridge.decoder import Decoder
from headrace_bridge.packets import Connack, MalformedPacket, Packet
from headrace_core.errors import HeadraceError

READ_BYTES = 512 * 1024
RESERVE_BYTES = 4 * 1024 * 1024
CONNECT_S = 5.0
CLOSE_S = 2.0
SILENCE = 1.5  # times keep-alive
REFUSED = {
    1: "unacceptable protocol version", 2: "client id rejected", 3: "server unavailable", 4: "bad user or password",
    5: "not authorized", 0x84: "unsupported protocol version", 0x85: "client id not valid",
    0x86: "bad user or password", 0x87: "not authorized", 0x88: "server unavailable", 0x89: "server busy",
    0x8A: "banned", 0x8C: "bad authentication method", 0x97: "quota exceeded", 0x9F: "connection rate exceeded",
}  # fmt: skip
ENDED = {
    0x00: "without an error", 0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error",
    0x87: "not authorized", 0x89: "server busy", 0x8B: "server shuts down", 0x8D: "keep-alive timeout",
    0x8E: "session taken over by another client with this client id", 0x93: "receive maximum exceeded",
    0x95: "packet too large", 0x96: "message rate too high", 0x97: "quota exceeded", 0x98: "administrative action",
    0x9C: "use another server", 0x9D: "server moved", 0x9F: "connection rate exceeded",
}  # fmt: skip


class ConnectionLost(HeadraceError):
    """The connection is of no use any more; the message says why."""

    code = "connection_lost"
    retry = True


class Silence(ConnectionLost):
    """The broker has given no sign of life; the bridge ends the connection."""

    code = "silence"


class DisconnectedByBroker(ConnectionLost):
    """DISCONNECT came, with the reason code in the message."""

    code = "disconnected_by_broker"


class SubscriptionRefused(ConnectionLost):
    """SUBACK has a code of failure, or not as many codes as there are filters."""

    code = "subscription_refused"


@dataclass(frozen=True)
class Target:
    """Where to connect and as whom. `tls` None: plain TCP."""

    host: str
    port: int
    client_id: str
    v5: bool
    keep_alive_s: int
    session_expiry_s: int
    receive_maximum: int
    user: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None


class Connection:
    """An accepted connection; make it with `connect`."""

    def __init__(self, sock: socket.socket, target: Target) -> None:
        self._sock = sock
        self._v5 = target.v5
        self.decoder = Decoder(v5=target.v5)
        self._out = bytearray()
        self._space = memoryview(bytearray(READ_BYTES))
        self._keep_alive_s = float(target.keep_alive_s)
        self._read_at = self._written_at = time.monotonic()
        self._pinged = False
        self._more = False
        self.connack = Connack(session_present=False, code=0)
        self.session_expiry_s: int | None = None
        """How long the broker keeps the session without a connection, as it says; MQTT 3.1.1 does not say it."""

    @classmethod
    def connect(cls, target: Target) -> Connection:
        """Connect, wait for CONNACK. Raises ConnectionLost with the reason."""
        try:
            sock = socket.create_connection((target.host, target.port), CONNECT_S)
        except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
            raise ConnectionLost(f"{target.host}:{target.port}: {error}") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls is not None:
                sock = target.tls.wrap_socket(sock, server_hostname=target.tls_server_name or target.host)
            connection = cls(sock, target)
            connection._greet(target)
        except OSError as error:
            sock.close()
            raise ConnectionLost(f"{target.host}:{target.port}: {error}") from error
        except HeadraceError:
            sock.close()
            raise
        return connection

    def _greet(self, target: Target) -> None:
        self._sock.sendall(
            packets.connect(
                target.client_id, v5=target.v5, keep_alive_s=target.keep_alive_s,
                session_expiry_s=target.session_expiry_s, receive_maximum=target.receive_maximum,
                user=target.user, password=target.password,
            )
        )  # fmt: skip
        first = self._first_packet()
        if not isinstance(first, Connack):
            raise ConnectionLost(f"the broker answered with {type(first).__name__} instead of CONNACK")
        if first.code:
            raise ConnectionLost(f"refused: {REFUSED.get(first.code, hex(first.code))}")
        self.connack = first
        if target.v5:
            self.session_expiry_s = first.number(packets.SESSION_EXPIRY, target.session_expiry_s)
        # a server that says 0 does not look for silence itself; we still do
        self._keep_alive_s = float(first.number(packets.SERVER_KEEP_ALIVE, 0) or target.keep_alive_s)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            patience_ms = int(SILENCE * self._keep_alive_s * 1000)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        self._sock.setblocking(False)
        self._more = target.tls is not None

    def _first_packet(self) -> Packet:
        deadline = time.monotonic() + CONNECT_S
        while time.monotonic() < deadline:
            data = self._sock.recv(READ_BYTES)
            if not data:
                raise ConnectionLost("closed by the broker before CONNACK")
            self.decoder.feed(data)
            try:
                if taken := self.decoder.take(1):
                    return taken[0]
            except MalformedPacket as error:
                raise ConnectionLost(f"not MQTT: {error}") from error
        raise ConnectionLost("no CONNACK in time")

    @property
    def may_read(self) -> bool:
        """Whether there is room for what would be read, if only in the reserve, or a long packet to be completed."""
        return self.decoder.held < RESERVE_BYTES or self.decoder.starved

    def wait(self, seconds: float) -> bool:
        """Wait for input or for room to write; whether there is input."""
        try:
            readable, writable, _ = select.select(
                [self._sock], [self._sock] if self._out else [], [], 0 if self._more else seconds
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ConnectionLost(str(error)) from error
        if writable:
            self._flush()
        return bool(readable) or self._more

    def receive(self) -> int:
        """Read what is there, one read's size at most, into the decoder. Raises ConnectionLost at the end."""
        got = 0
        space, recv_into = self._space, self._sock.recv_into
        self._more = False
        try:
            while got < READ_BYTES:
                count = recv_into(space[got:])
                if not count:
                    raise ConnectionLost("closed by the broker")
                got += count
            self._more = True
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if got:
            self.decoder.feed(bytes(space[:got]))
            self._read_at = time.monotonic()
            self._pinged = False
        return got

    def send(self, data: bytes) -> None:
        """Write, or keep what does not fit now. Raises ConnectionLost."""
        if data:
            self._out += data
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out)
                del self._out[:sent]
                self._written_at = time.monotonic()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def keep_alive(self, *, reading: bool) -> None:
        """Call every turn: PINGREQ in time; raises ConnectionLost when the broker has been silent for too long.

        `reading`: this turn has read what there was; without it silence says nothing.
        """
        now = time.monotonic()
        if not reading:
            self._read_at = now
        silent = now - self._read_at
        if silent >= SILENCE * self._keep_alive_s:
            raise Silence(f"no sign of life for {silent:.1f} s")
        due = now - self._written_at >= self._keep_alive_s / 2
        if due or (silent >= self._keep_alive_s / 2 and not self._pinged):
            self._pinged = True
            self._written_at = now
            self.send(packets.PINGREQ_BYTES)

    def close(self, reason: int | None = None) -> None:
        """End in good order; the session stays. `reason`: a code that tells a broker of MQTT 5 why."""
        last = packets.DISCONNECT_BYTES
        if reason is not None:
            last = packets.DISCONNECT_FOR_BYTES + bytes((reason,)) if self._v5 else b""
        with contextlib.suppress(OSError):
            self._sock.settimeout(CLOSE_S)
            self._sock.sendall(bytes(self._out) + last)
            self._sock.shutdown(socket.SHUT_WR)  # with TLS, what comes after that is read without being understood
            deadline = time.monotonic() + CLOSE_S
            while time.monotonic() < deadline and self._sock.recv(READ_BYTES):
                continue
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._sock.close()

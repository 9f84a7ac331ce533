"""The packets of MQTT 5 and 3.1.1, as far as a client needs them: pure (bridge.md 3). `decoder.py` finds their edges.

Only the framing is strict: a packet that cannot be told from its neighbours raises MalformedPacket, and the connection
must be closed. What a publisher chose (topic, properties, payload) never does: it could be delivered again for ever.
Texts are bytes here; whether they are UTF-8 is somebody else's question.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from headrace_core.errors import HeadraceError

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 3, 4, 5, 6, 7
SUBACK, UNSUBACK, PINGRESP, DISCONNECT, AUTH = 9, 11, 13, 14, 15

CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, SESSION_EXPIRY = 3, 8, 9, 17
SERVER_KEEP_ALIVE, REASON_STRING, RECEIVE_MAXIMUM, USER_PROPERTY, MAXIMUM_PACKET_SIZE = 19, 31, 33, 38, 39

BYTE, TWO_BYTES, FOUR_BYTES, VARIABLE, BINARY, PAIR = range(6)
PROPERTY_TYPES = {
    1: BYTE, 2: FOUR_BYTES, 3: BINARY, 8: BINARY, 9: BINARY, 11: VARIABLE, 17: FOUR_BYTES, 18: BINARY, 19: TWO_BYTES,
    21: BINARY, 22: BINARY, 23: BYTE, 24: FOUR_BYTES, 25: BYTE, 26: BINARY, 28: BINARY, 31: BINARY, 33: TWO_BYTES,
    34: TWO_BYTES, 35: TWO_BYTES, 36: BYTE, 37: BYTE, 38: PAIR, 39: FOUR_BYTES, 40: BYTE, 41: BYTE, 42: BYTE,
}  # fmt: skip

Value = int | bytes | tuple[bytes, bytes]
Properties = tuple[tuple[int, Value], ...]

NO_LOCAL, RETAIN_AS_PUBLISHED, RETAINED_IF_NEW = 0x04, 0x08, 0x10  # options of a subscription

PINGREQ_BYTES = b"\xc0\x00"
DISCONNECT_FOR_BYTES = b"\xe0\x01"  # and the reason code
DISCONNECT_BYTES = b"\xe0\x00"  # normal: the session stays for its expiry interval, no will is sent
LONGEST_LENGTH = 4  # bytes of a variable byte integer
MOST_PROPERTY_BYTES = 64 * 1024
"""Of a PUBLISH: no record has more room beside its payload (bridge.md 2). Longer ones are not taken apart: in Python a
property of five bytes takes forty times as much, and one message could fill the memory."""


MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


class MalformedPacket(HeadraceError):
    """The stream cannot be read on; close the connection and open another.

    `reason`: MQTT 5's code for DISCONNECT; `start`: the first bytes of the packet, if the decoder knows them.
    """

    code = "malformed_packet"
    retry = True

    def __init__(self, problem: str, reason: int = MALFORMED) -> None:
        super().__init__(problem)
        self.reason = reason
        self.start = b""


class Publish(NamedTuple):
    """A message. `packet_id` is 0 with QoS 0; `missing`: bytes at the payload's end that were dropped unread.

    A tuple, because one is made for each message and nothing in Python is made faster.
    """

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties = ()
    missing: int = 0
    malformed_properties: bool = False


@dataclass(frozen=True, slots=True)
class Connack:
    """Answer to CONNECT; `code` 0 = accepted."""

    session_present: bool
    code: int
    properties: Properties = ()

    def number(self, property_id: int, default: int) -> int:
        """A numeric property, or the default."""
        for found, value in self.properties:
            if found == property_id and isinstance(value, int):
                return value
        return default


@dataclass(frozen=True, slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK or UNSUBACK: `kind`, and one reason code a topic filter, or one."""

    kind: int
    packet_id: int
    codes: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    """PINGRESP."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The server's DISCONNECT with its reason code."""

    code: int


Packet = Publish | Connack | Ack | Pong | Disconnected


def decode(head: int, body: bytes, missing: int = 0, *, v5: bool) -> Packet:
    """The packet with this first byte and this body. Raises MalformedPacket."""
    kind = head >> 4
    if kind == PUBLISH:
        return _publish(head, body, missing, v5=v5)
    if head & 15 != (2 if kind == PUBREL else 0):
        raise MalformedPacket(f"a packet of kind {kind} with flags {head & 15}")
    if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        return _ack(kind, body, v5=v5)
    if kind in (SUBACK, UNSUBACK):
        return _subscription_ack(kind, body, v5=v5)
    if kind == PINGRESP:
        if body:
            raise MalformedPacket("a PINGRESP with a body")
        return Pong()
    if kind == CONNACK:
        if len(body) < 2:
            raise MalformedPacket("a CONNACK of less than two bytes")
        properties = _last_properties(body, 2) if v5 else ()
        if any(name in (RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE) and not value for name, value in properties):
            raise MalformedPacket("a CONNACK that permits no packet at all", PROTOCOL_ERROR)
        return Connack(bool(body[0] & 1), body[1], properties)
    if kind == DISCONNECT:
        _last_properties(body, 1)
        return Disconnected(body[0] if body else 0)
    raise MalformedPacket(f"a server does not send packets of kind {kind} here", PROTOCOL_ERROR)


def _last_properties(body: bytes, at: int) -> Properties:
    """Properties at the end of a packet, which may be left out. Raises MalformedPacket."""
    if len(body) <= at:
        return ()
    properties, end = read_properties(body, at)
    if end != len(body):
        raise MalformedPacket("bytes behind the properties")
    return properties


def _ack(kind: int, body: bytes, *, v5: bool) -> Ack:
    if len(body) < 2 or (len(body) > 2 and not v5):
        raise MalformedPacket(f"a packet of kind {kind} with {len(body)} bytes")
    _last_properties(body, 3)
    return Ack(kind, body[0] << 8 | body[1], body[2:3] or b"\x00")


def _publish(head: int, body: bytes, missing: int, *, v5: bool) -> Publish:
    qos = head >> 1 & 3
    if qos == 3 or len(body) < 2:
        raise MalformedPacket("PUBLISH with QoS 3 or without topic")
    at = 2 + (body[0] << 8 | body[1])
    topic = body[2:at]
    packet_id = 0
    if qos:
        packet_id = int.from_bytes(body[at : at + 2], "big")
        at += 2
        if not packet_id:
            raise MalformedPacket("PUBLISH without packet id")
    if at > len(body):
        raise MalformedPacket("PUBLISH whose topic is longer than the packet")
    properties: Properties = ()
    malformed = False
    if v5:
        if body[at : at + 1] == b"\x00":
            at += 1
        else:
            try:
                length, after = read_variable(body, at)
                if MOST_PROPERTY_BYTES < length <= len(body) - after:
                    malformed, at = True, after + length
                else:
                    properties, at = read_properties(body, at)
            except MalformedPacket:
                malformed = True
    retain, dup = bool(head & 1), bool(head & 8)
    return Publish(topic, body[at:], qos, retain, dup, packet_id, properties, missing, malformed)


def _subscription_ack(kind: int, body: bytes, *, v5: bool) -> Ack:
    if len(body) < 2:
        raise MalformedPacket(f"a packet of kind {kind} without packet id")
    at = read_properties(body, 2)[1] if v5 else 2
    return Ack(kind, body[0] << 8 | body[1], body[at:])


def read_variable(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer and the place after it. Raises MalformedPacket."""
    value = shift = 0
    for place in range(at, min(at + LONGEST_LENGTH, len(data))):
        value |= (data[place] & 127) << shift
        if data[place] < 128:
            return value, place + 1
        shift += 7
    raise MalformedPacket("a variable byte integer without end")


def read_properties(data: bytes, at: int) -> tuple[Properties, int]:
    """The properties whose length stands at `at`, and the place after them. Raises MalformedPacket."""
    length, at = read_variable(data, at)
    end = at + length
    if end > len(data):
        raise MalformedPacket("properties longer than the packet")
    data = data[:end]  # once: it can be long, and so can the list of properties
    found: list[tuple[int, Value]] = []
    while at < end:
        kind = PROPERTY_TYPES.get(data[at])
        if kind is None:
            raise MalformedPacket(f"unknown property {data[at]}")
        value, after = _read_value(kind, data, at + 1)
        found.append((data[at], value))
        at = after
    return tuple(found), end


def _read_value(kind: int, data: bytes, at: int) -> tuple[Value, int]:
    if kind == VARIABLE:
        return read_variable(data, at)
    if kind == PAIR:
        name, at = _read_binary(data, at)
        value, at = _read_binary(data, at)
        return (name, value), at
    if kind == BINARY:
        return _read_binary(data, at)
    size = {BYTE: 1, TWO_BYTES: 2, FOUR_BYTES: 4}[kind]
    if at + size > len(data):
        raise MalformedPacket("a property is cut off")
    return int.from_bytes(data[at : at + size], "big"), at + size


def _read_binary(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    if at + 2 > len(data) or end > len(data):
        raise MalformedPacket("a property is cut off")
    return data[at + 2 : end], end


def variable(value: int) -> bytes:
    """A variable byte integer."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def text(value: bytes) -> bytes:
    """A two-byte length and the bytes. Raises ValueError if there are more than 65,535."""
    if len(value) > 0xFFFF:
        raise ValueError("more than 65,535 bytes")
    return struct.pack("!H", len(value)) + value


def _packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + variable(len(body)) + body


def connect(
    client_id: str, *, v5: bool, keep_alive_s: int, session_expiry_s: int, receive_maximum: int,
    user: str | None = None, password: str | None = None,
) -> bytes:  # fmt: skip
    """CONNECT that goes on with the session there is (bridge.md 1.1)."""
    flags = (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
    body = text(b"MQTT") + struct.pack("!BBH", 5 if v5 else 4, flags, keep_alive_s)
    if v5:
        properties = struct.pack("!BIBH", SESSION_EXPIRY, session_expiry_s, RECEIVE_MAXIMUM, receive_maximum)
        body += variable(len(properties)) + properties
    body += text(client_id.encode())
    return _packet(0x10, body + b"".join(text(part.encode()) for part in (user, password) if part is not None))


def subscribe(packet_id: int, filters: dict[str, int], *, v5: bool) -> bytes:
    """SUBSCRIBE to filters with their QoS; on MQTT 5 with Retain As Published, retained messages only if the filter is
    new, and nothing that this client has published (No Local, which a shared subscription must not have: 3.8.3.1)."""

    def options(name: str, qos: int) -> int:
        if not v5:
            return qos
        return qos | RETAINED_IF_NEW | RETAIN_AS_PUBLISHED | (0 if name.startswith("$share/") else NO_LOCAL)

    asked = b"".join(text(name.encode()) + bytes((options(name, qos),)) for name, qos in filters.items())
    return _packet(0x82, struct.pack("!H", packet_id) + (b"\x00" if v5 else b"") + asked)


def unsubscribe(packet_id: int, filters: list[str], *, v5: bool) -> bytes:
    """UNSUBSCRIBE."""
    asked = b"".join(text(name.encode()) for name in filters)
    return _packet(0xA2, struct.pack("!H", packet_id) + (b"\x00" if v5 else b"") + asked)


def publish(topic: bytes, payload: bytes, packet_id: int, *, retain: bool, dup: bool = False, v5: bool) -> bytes:
    """PUBLISH with QoS 1."""
    head = 0x32 | (8 if dup else 0) | (1 if retain else 0)
    return _packet(head, text(topic) + struct.pack("!H", packet_id) + (b"\x00" if v5 else b"") + payload)


def publish_size(topic: int, payload: int, *, v5: bool) -> int:
    """Bytes of the packet that `publish` makes for a topic and a payload of so many bytes."""
    length = 2 + topic + 2 + v5 + payload
    return 1 + len(variable(length)) + length


def acknowledge(kind: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC or PUBCOMP with success, the same in both versions."""
    return struct.pack("!BBH", kind << 4, 2, packet_id)

"""The decoder against everything: all packets with all properties, cut everywhere, damaged, and as others write them.

`make test` reads 20,000 damaged streams, `make soak` 1,000,000.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading

import paho.mqtt.client as paho
import pytest
from amqtt.adapters import BufferReader
from amqtt.mqtt.connack import ConnackPacket
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headrace_bridge import packets
from headrace_bridge.decoder import Decoder
from headrace_bridge.packets import Ack, Connack, Disconnected, MalformedPacket, Packet, Pong, Publish

VALUES: dict[int, object] = {
    1: 1, 2: 2**32 - 1, 3: "text/plain", 8: "answer/here", 9: b"\0\xff", 11: 200, 17: 3600, 18: "a client", 19: 60,
    21: "method", 22: b"data", 23: 1, 24: 5, 25: 1, 26: "information", 28: "server", 31: "a reason", 33: 20, 34: 10,
    35: 4, 36: 1, 37: 1, 38: ("name", "value"), 39: 100_000, 40: 1, 41: 1, 42: 1,
}  # fmt: skip
KINDS = {
    packets.CONNACK: (PacketTypes.CONNACK, b"\x01\x00", b""),
    packets.PUBLISH: (PacketTypes.PUBLISH, b"\0\2te\0\7", b"payload"),
    packets.PUBACK: (PacketTypes.PUBACK, b"\0\7\x10", b""),
    packets.PUBREC: (PacketTypes.PUBREC, b"\0\7\x10", b""),
    packets.PUBREL: (PacketTypes.PUBREL, b"\0\7\x92", b""),
    packets.PUBCOMP: (PacketTypes.PUBCOMP, b"\0\7\x92", b""),
    packets.SUBACK: (PacketTypes.SUBACK, b"\0\7", b"\0\1\2\x87"),
    packets.UNSUBACK: (PacketTypes.UNSUBACK, b"\0\7", b"\0\x11"),
    packets.DISCONNECT: (PacketTypes.DISCONNECT, b"\x8e", b""),
}
FLAGS = {packets.PUBLISH: 2, packets.PUBREL: 2}


def all_properties(kind: int) -> Properties:
    """Every property that MQTT 5 allows in a packet, as paho packs it."""
    found = Properties(kind)
    for name, number in found.names.items():
        if kind in found.properties[number][1]:
            setattr(found, name.replace(" ", ""), VALUES[number])
    return found


def packet(kind: int) -> bytes:
    paho_kind, before, after = KINDS[kind]
    body = before + all_properties(paho_kind).pack() + after
    return bytes((kind << 4 | FLAGS.get(kind, 0),)) + packets.variable(len(body)) + body


ALL = {kind: packet(kind) for kind in KINDS} | {packets.PINGRESP: b"\xd0\0"}


def decode(data: bytes, pieces: list[bytes] | None = None, *, v5: bool = True) -> tuple[list[Packet], bool]:
    """The packets, and whether the stream was malformed."""
    decoder, found = Decoder(v5=v5), list[Packet]()
    try:
        for piece in pieces if pieces is not None else [data]:
            decoder.feed(piece)
            while taken := decoder.take(3):
                found += taken
        decoder.check()
    except MalformedPacket:
        return found, True
    return found, False


def test_every_packet_with_all_its_properties() -> None:
    answers = {kind: decode(data)[0][0] for kind, data in ALL.items()}
    connack = answers[packets.CONNACK]
    assert isinstance(connack, Connack)
    assert len(connack.properties) == 17
    assert connack.number(packets.SERVER_KEEP_ALIVE, 0) == 60
    message = answers[packets.PUBLISH]
    assert isinstance(message, Publish)
    assert (message.topic, message.payload, message.packet_id) == (b"te", b"payload", 7)
    expected = {1: 1, 2: 2**32 - 1, 3: b"text/plain", 8: b"answer/here", 9: b"\0\xff", 11: 200, 35: 4}
    assert dict(message.properties) == {**expected, 38: (b"name", b"value")}
    for kind, code in ((packets.PUBACK, 0x10), (packets.PUBREC, 0x10), (packets.PUBREL, 0x92), (packets.PUBCOMP, 0x92)):
        assert answers[kind] == Ack(kind, 7, bytes((code,)))
    assert answers[packets.SUBACK] == Ack(packets.SUBACK, 7, b"\0\1\2\x87")
    assert answers[packets.UNSUBACK] == Ack(packets.UNSUBACK, 7, b"\0\x11")
    assert answers[packets.DISCONNECT] == Disconnected(0x8E)
    assert answers[packets.PINGRESP] == Pong()


@pytest.mark.parametrize("kind", ALL)
def test_a_packet_cut_at_every_byte_is_the_same_packet(kind: int) -> None:
    data = ALL[kind] + b"\xd0\0"
    whole = decode(data)
    assert len(whole[0]) == 2
    for cut in range(len(data) + 1):
        assert decode(data, [data[:cut], data[cut:]]) == whole
        assert len(decode(data[:cut])[0]) == (cut >= len(ALL[kind])) + (cut == len(data))
        assert not decode(data[:cut])[1], "a part is no error"
    assert decode(data, [bytes((byte,)) for byte in data]) == whole


@pytest.mark.parametrize("kind", ALL)
def test_a_body_cut_short_is_malformed_or_another_whole_packet(kind: int) -> None:
    """The length says less than the properties need: nothing but MalformedPacket comes of it, and nothing hangs."""
    head, body = ALL[kind][0], ALL[kind][2 if ALL[kind][1] < 128 else 3 :]
    for cut in range(len(body)):
        data = bytes((head,)) + packets.variable(cut) + body[:cut]
        found, malformed = decode(data)
        assert malformed or len(found) == 1


def test_what_a_server_never_sends_is_malformed() -> None:
    for kind in (0, 1, 8, 10, 12, packets.AUTH):
        with pytest.raises(MalformedPacket) as caught:
            packets.decode(kind << 4, b"\0\0", v5=True)
        assert caught.value.reason == packets.PROTOCOL_ERROR
    for kind, data in ALL.items():
        if kind != packets.PUBLISH:
            with pytest.raises(MalformedPacket, match="flags"):
                packets.decode(data[0] ^ 1, data[2:], v5=True)


def damaged(dice: random.Random) -> bytes:
    """Some packets in a row, with some bytes changed, left out, doubled or made up."""
    data = bytearray(b"".join(dice.choices(list(ALL.values()), k=dice.randrange(1, 5))))
    for _ in range(dice.randrange(0, 4)):
        place = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[place] = dice.randrange(256)
            case 1:
                del data[place : place + dice.randrange(1, 5)]
            case 2:
                data[place:place] = data[place : place + dice.randrange(1, 30)]
            case _:
                data[place:place] = dice.randbytes(dice.randrange(1, 5))
        if not data:
            return dice.randbytes(9)
    return bytes(data)


def read_damaged(seed: int, streams: int) -> None:
    dice = random.Random(seed)
    for _ in range(streams):
        data, v5 = damaged(dice), dice.random() < 0.8
        whole = decode(data, v5=v5)
        places = sorted(dice.randrange(len(data) + 1) for _ in range(3))
        pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        assert decode(data, pieces, v5=v5) == whole
        for found in whole[0]:
            assert type(found) in (Publish, Ack, Connack, Pong, Disconnected)
            assert not isinstance(found, Publish) or bool(found.packet_id) == bool(found.qos)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**64))
def test_damaged_streams_in_any_pieces(seed: int) -> None:
    read_damaged(seed, 200)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=1_000, deadline=None)
@given(st.integers(0, 2**64))
def test_a_million_damaged_streams(seed: int) -> None:
    read_damaged(seed, 1_000)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.integers(0, 200))
def test_any_bytes_at_all(data: bytes, v5: bool, cut: int) -> None:
    assert decode(data, [data[:cut], data[cut:]], v5=v5) == decode(data, v5=v5)


def test_what_paho_sends_is_read_as_it_was_meant() -> None:
    """Client and server write PUBLISH alike: paho's bytes, taken from its socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = bytearray()

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(b"\x20\x03\x00\x00\x00")
            while data := sock.recv(65_536):
                received.extend(data)

    thread = threading.Thread(target=serve)
    thread.start()
    client = paho.Client(CallbackAPIVersion.VERSION2, "c", protocol=paho.MQTTv5)
    client.connect("127.0.0.1", listener.getsockname()[1])
    client.loop_start()
    sent = [(f"te/{n}", bytes(n % 256 for n in range(size)), n % 3, n % 2 == 1) for n, size in enumerate(SIZES)]
    for topic, payload, qos, retain in sent:
        client.publish(topic, payload, qos, retain, all_properties(PacketTypes.PUBLISH) if retain else None)
    for _ in range(600):
        if len(received) >= sum(SIZES):
            break
        threading.Event().wait(0.05)
    client.disconnect()
    client.loop_stop()
    thread.join(10)
    listener.close()
    found = [one for one in decode(bytes(received))[0] if isinstance(one, Publish)]
    assert [(m.topic.decode(), m.payload, m.qos, m.retain) for m in found] == sent
    assert [len(m.properties) for m in found] == [8 if retain else 0 for _, _, _, retain in sent]


SIZES = (0, 1, 100, 125, 126, 127, 128, 16_000, 16_383, 16_384, 70_000, 2_097_152)


def by_amqtt(kind: type, data: bytes) -> object:
    """What amqtt reads."""

    async def read() -> object:
        reader = BufferReader(data)
        header = await MQTTFixedHeader.from_stream(reader)
        return await kind.from_stream(reader, fixed_header=header)  # type: ignore[attr-defined]

    return asyncio.run(read())


def test_what_the_bridge_sends_is_read_by_amqtt() -> None:
    hello = packets.connect(
        "me", v5=False, keep_alive_s=30, session_expiry_s=1, receive_maximum=9, user="u\u00e9", password="p"
    )  # fmt: skip
    connect = by_amqtt(ConnectPacket, hello)
    assert (connect.client_id, connect.username, connect.password) == ("me", "u\u00e9", "p")  # type: ignore[attr-defined]
    assert (connect.keep_alive, connect.clean_session_flag) == (30, False)  # type: ignore[attr-defined]
    asked = by_amqtt(SubscribePacket, packets.subscribe(7, {"te/#": 1, "a/+": 2}, v5=False))
    assert (asked.variable_header.packet_id, asked.payload.topics) == (7, [("te/#", 1), ("a/+", 2)])  # type: ignore[attr-defined]
    gone = by_amqtt(UnsubscribePacket, packets.unsubscribe(8, ["te/#"], v5=False))
    assert (gone.variable_header.packet_id, gone.payload.topics) == (8, ["te/#"])  # type: ignore[attr-defined]
    message = by_amqtt(PublishPacket, packets.publish(b"te/a", b"xy", 9, retain=True, dup=True, v5=False))
    assert (message.topic_name, message.data, message.packet_id) == ("te/a", b"xy", 9)  # type: ignore[attr-defined]
    assert (message.qos, message.retain_flag, message.dup_flag) == (1, True, True)  # type: ignore[attr-defined]
    assert by_amqtt(PubackPacket, packets.acknowledge(packets.PUBACK, 300)).variable_header.packet_id == 300  # type: ignore[attr-defined]
    by_amqtt(DisconnectPacket, packets.DISCONNECT_BYTES)


def test_what_amqtt_sends_is_read_by_the_bridge() -> None:
    data = b"".join(
        built.to_bytes()
        for built in (
            ConnackPacket.build(1, 0), SubackPacket.build(7, [1, 0x80]), PubackPacket.build(300),
            PublishPacket.build("te/a", b"x" * 200, 9, True, 2, True),
            PublishPacket.build("te/b", b"", None, False, 0, False),
        )
    )  # fmt: skip
    assert decode(data, v5=False) == (
        [
            Connack(session_present=True, code=0), Ack(packets.SUBACK, 7, b"\x01\x80"), Ack(packets.PUBACK, 300, b"\0"),
            Publish(b"te/a", b"x" * 200, 2, retain=True, dup=True, packet_id=9),
            Publish(b"te/b", b"", 0, retain=False, dup=False, packet_id=0),
        ],
        False,
    )  # fmt: skip

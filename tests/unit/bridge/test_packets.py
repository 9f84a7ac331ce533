"""The decoder reads what paho writes, in any pieces, and nothing that a publisher chose can break it."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from headrace_bridge import packets
from headrace_bridge.decoder import Decoder
from headrace_bridge.packets import (
    PUBACK,
    PUBLISH,
    PUBREL,
    SUBACK,
    Ack,
    Connack,
    Disconnected,
    MalformedPacket,
    Pong,
    Publish,
)  # fmt: skip

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), max_size=20)


def frame(head: int, body: bytes) -> bytes:
    return bytes((head,)) + packets.variable(len(body)) + body


def encoded(message: Publish, properties: bytes | None) -> bytes:
    """A PUBLISH as a broker sends it."""
    head = PUBLISH << 4 | message.dup << 3 | message.qos << 1 | message.retain
    packet_id = struct.pack("!H", message.packet_id) if message.qos else b""
    return frame(head, packets.text(message.topic) + packet_id + (properties or b"") + message.payload)


@st.composite
def messages(draw: st.DrawFn) -> Publish:
    qos = draw(st.integers(0, 2))
    return Publish(
        draw(st.binary(max_size=40)), draw(st.binary(max_size=300)), qos, draw(st.booleans()), draw(st.booleans()),
        draw(st.integers(1, 65535)) if qos else 0,
    )  # fmt: skip


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def decode(data: bytes, *, v5: bool = True, cuts: list[int] | None = None, limit: int = 1000) -> list[packets.Packet]:
    decoder = Decoder(v5=v5)
    found: list[packets.Packet] = []
    for piece in pieces(data, cuts or []):
        decoder.feed(piece)
        while taken := decoder.take(limit):
            assert len(taken) <= limit
            found += taken
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.lists(messages(), max_size=8), st.booleans(), st.lists(st.integers(0, 5000), max_size=20), st.integers(1, 5)
)  # fmt: skip
def test_any_messages_in_any_pieces_come_out_as_they_were(
    sent: list[Publish], v5: bool, cuts: list[int], limit: int
) -> None:
    data = b"".join(encoded(message, b"\0" if v5 else None) for message in sent)
    assert decode(data, v5=v5, cuts=cuts, limit=limit) == sent


@settings(max_examples=100, deadline=None)
@given(WORDS, WORDS, st.binary(max_size=20), st.lists(st.tuples(WORDS, WORDS), max_size=4), st.integers(0, 2**32 - 1))
def test_properties_are_what_paho_packs(
    content: str, answer: str, correlation: bytes, pairs: list[tuple[str, str]], expiry: int
) -> None:
    theirs = PahoProperties(PacketTypes.PUBLISH)
    theirs.ContentType, theirs.ResponseTopic, theirs.CorrelationData = content, answer, correlation
    theirs.MessageExpiryInterval = expiry
    theirs.PayloadFormatIndicator = 1
    theirs.TopicAlias = 3
    if pairs:
        theirs.UserProperty = pairs
    message = Publish(b"t", b"p", 1, retain=False, dup=False, packet_id=9)
    (got,) = decode(encoded(message, theirs.pack()))
    assert isinstance(got, Publish)
    assert (got.topic, got.payload, got.malformed_properties) == (b"t", b"p", False)
    assert sorted(got.properties, key=repr) == sorted(
        [(3, content.encode()), (8, answer.encode()), (9, correlation), (2, expiry), (1, 1), (35, 3)]
        + [(38, (name.encode(), value.encode())) for name, value in pairs],
        key=repr,
    )


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_noise_is_decoded_or_malformed_and_nothing_else(noise: bytes, cuts: list[int]) -> None:
    try:
        found = decode(noise, cuts=cuts)
    except MalformedPacket:
        return
    assert len(found) <= len(noise)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_properties_of_a_publish_never_break_the_stream(noise: bytes) -> None:
    broken = frame(0x32, packets.text(b"t") + b"\0\7" + noise)
    after = encoded(Publish(b"next", b"", 0, retain=False, dup=False, packet_id=0), b"\0")
    first, second = decode(broken + after)
    assert isinstance(first, Publish)
    assert (first.topic, first.packet_id) == (b"t", 7)
    assert isinstance(second, Publish)
    assert second.topic == b"next"


def test_a_long_message_keeps_its_first_bytes_and_says_what_is_missing() -> None:
    message = Publish(b"t", bytes(range(256)) * 40, 1, retain=False, dup=False, packet_id=5)
    after = Publish(b"after", b"x", 0, retain=False, dup=False, packet_id=0)
    data = encoded(message, b"\0") + encoded(after, b"\0")
    for step in (1, 7, 999, len(data)):
        decoder = Decoder(v5=True, keep_bytes=1000)
        found: list[packets.Packet] = []
        for at in range(0, len(data), step):
            decoder.feed(data[at : at + step])
            found += decoder.take(10)
        long, short = found
        assert isinstance(long, Publish)
        assert long.payload == message.payload[: len(long.payload)]
        assert len(long.payload) + long.missing == len(message.payload)
        assert 900 < len(long.payload) <= 1000
        assert short == after


def test_what_is_not_taken_stays() -> None:
    sent = [Publish(b"t", b"%d" % n, 0, retain=False, dup=False, packet_id=0) for n in range(10)]
    decoder = Decoder(v5=False)
    decoder.feed(b"".join(encoded(message, None) for message in sent))
    assert decoder.take(4) == sent[:4]
    decoder.feed(encoded(sent[0], None))
    assert decoder.take(100) == [*sent[4:], sent[0]]
    assert decoder.take(1) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x20\x03\x01\x00\x00", Connack(session_present=True, code=0)),
        (b"\x20\x02\x00\x05", Connack(session_present=False, code=5)),
        (b"\x20\x06\x00\x00\x03\x21\x00\x14", Connack(session_present=False, code=0, properties=((33, 20),))),
        (b"\x40\x02\x00\x07", Ack(PUBACK, 7, b"\0")),
        (b"\x40\x03\x00\x07\x97", Ack(PUBACK, 7, b"\x97")),
        (b"\x62\x02\x01\x00", Ack(PUBREL, 256, b"\0")),
        (b"\x90\x05\x00\x01\x00\x01\x80", Ack(SUBACK, 1, b"\x01\x80")),
        (b"\xd0\x00", Pong()),
        (b"\xe0\x02\x8e\x00", Disconnected(0x8E)),
        (b"\xe0\x00", Disconnected(0)),
    ],
)
def test_other_packets(data: bytes, expected: packets.Packet) -> None:
    assert decode(data) == [expected]


@pytest.mark.parametrize(
    "data",
    [
        b"\x30\xff\xff\xff\xff\x01", b"\x36\x05\x00\x01t\x00\x01", b"\x32\x05\x00\x01t\x00\x00", b"\x32\x04\x00\x09tt",
        b"\xf0\x00", b"\x10\x00", b"\x20\x01\x00", b"\x20\x06\x00\x00\x03\x21\x00\x00",
        b"\x20\x08\x00\x00\x05\x27\x00\x00\x00\x00", b"\x40\x01\x00", b"\x90\x01\x00", b"\x00\x00",
    ],
)  # fmt: skip
def test_a_stream_that_cannot_be_read_on_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode(data)


def test_a_property_is_a_number_or_the_default() -> None:
    connack = Connack(session_present=False, code=0, properties=((33, 20), (31, b"why")))
    assert (connack.number(33, 1), connack.number(39, 2), connack.number(31, 3)) == (20, 2, 3)


def test_a_subscription_asks_for_what_others_publish_as_they_have_published_it() -> None:
    asked = packets.subscribe(7, {"te/#": 1, "$share/g/te/#": 2}, v5=True)
    assert asked == b"\x82\x1a\0\7\0\0\4te/#\x1d\0\x0d$share/g/te/#\x1a", "No Local, but not of a shared one"
    assert packets.subscribe(7, {"te/#": 1}, v5=False) == b"\x82\x09\0\7\0\4te/#\1"


def test_a_topic_has_65_535_bytes_at_most() -> None:
    assert len(packets.text(b"x" * 65_535)) == 65_537
    with pytest.raises(ValueError, match="65,535"):
        packets.text(b"x" * 65_536)


def test_packets_before_a_malformed_one_are_not_lost() -> None:
    decoder = Decoder(v5=True)
    decoder.feed(b"\xd0\x00\xf0\x00")
    assert decoder.take(9) == [Pong()]
    with pytest.raises(MalformedPacket):
        decoder.check()
    with pytest.raises(MalformedPacket):
        decoder.take(9)

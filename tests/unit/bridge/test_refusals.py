"""A record for which the broker closes the connection is told from a fault of the network; only that is given up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_bridge import packets
from headrace_bridge.bridge import Bridge
from headrace_bridge.connection import ConnectionLost, Silence, Target
from headrace_bridge.inflight import Window
from headrace_bridge.outbound import Outbound
from headrace_bridge.receive import Receiver
from headrace_bridge.record import Router
from headrace_bridge.refusals import SHORT_S, Place, Suspicion, closed_by_peer
from headrace_bridge.subscriptions import FilterMemory
from tests.support.scripted_broker import CONNACK_PRESENT, FakeOutlet, Peer, ScriptedBroker, run
from tests.support.streams_worker import until

A, B, C = (0, 1), (0, 2), (0, 3)


class Clock:
    """Seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def cut(suspicion: Suspicion, sent: list[Place], *, pong: bool = True) -> Place | None:
    """A connection on which these go, or of these the first if one goes alone, and that is closed then."""
    suspicion.connected()
    if not suspicion.careful:
        for record in sent:
            suspicion.sent(record)
    elif pong:
        suspicion.works()
        one = suspicion.next_one(sent)
        assert one is not None
        suspicion.sent(one)
        assert suspicion.next_one(sent) is None, "one at a time"
    return suspicion.lost(sent)


def test_it_goes_alone_at_the_third_try_and_is_refused_then() -> None:
    suspicion = Suspicion(Clock())
    assert [cut(suspicion, [A, B]), suspicion.careful] == [None, False]
    assert [cut(suspicion, [A, B]), suspicion.careful] == [None, True]
    assert cut(suspicion, [A, B]) == A
    suspicion.settled(A)
    assert suspicion.careful, "its neighbour goes alone too"
    assert [cut(suspicion, [B]), cut(suspicion, [B]), cut(suspicion, [B])] == [None, None, B]


def test_one_behind_others_is_found() -> None:
    suspicion = Suspicion(Clock())
    cut(suspicion, [A, B])
    cut(suspicion, [A, B])
    suspicion.connected()
    suspicion.works()
    assert suspicion.next_one([A, B]) == A
    suspicion.sent(A)
    suspicion.settled(A)
    assert suspicion.next_one([B]) == B
    suspicion.sent(B)
    assert [suspicion.lost([B]), cut(suspicion, [B]), cut(suspicion, [B])] == [None, None, B]


@pytest.mark.parametrize("fault", ["away", "before", "late", "acknowledged"])
def test_a_fault_of_the_network_ends_the_row(fault: str) -> None:
    clock = Clock()
    suspicion = Suspicion(clock)
    for _ in range(5):
        assert cut(suspicion, [A]) is None
        assert cut(suspicion, [A]) is None
        if fault == "away":
            suspicion.unreachable()
        elif fault == "before":
            assert cut(suspicion, [A], pong=False) is None
            assert [cut(suspicion, [A]), cut(suspicion, [A])] == [None, None]
            suspicion.unreachable()
        elif fault == "late":
            suspicion.connected()
            suspicion.works()
            suspicion.sent(A)
            clock.now += SHORT_S + 1
            assert suspicion.lost([A]) is None
        else:
            suspicion.settled(A)
        assert not suspicion.careful


def test_only_the_other_end_refuses() -> None:
    reset, timeout = ConnectionLost("reset"), ConnectionLost("timed out")
    reset.__cause__, timeout.__cause__ = ConnectionResetError(), TimeoutError()
    assert [closed_by_peer(error) for error in (ConnectionLost("closed"), reset)] == [True, True]
    assert [closed_by_peer(error) for error in (Silence("x"), timeout, packets.MalformedPacket("x"))] == [False] * 3


@pytest.mark.parametrize("v5", [False, True])
@pytest.mark.parametrize("size", [0, 100, 127, 128, 16_384, 2_100_000])
def test_the_size_of_a_packet_is_exact(size: int, v5: bool) -> None:
    packet = packets.publish(b"te/a", bytes(size), 1, retain=True, v5=v5)
    assert packets.publish_size(4, size, v5=v5) == len(packet)


class Message:
    """A record of `outbound`."""

    def __init__(self, offset: int, value: bytes) -> None:
        self.offset, self.partition, self.error = lambda: offset, lambda: 0, lambda: None
        self.key, self.value, self.timestamp = lambda: b"te/a", lambda: value, lambda: (1, 1_000)


class FakeConsumer:
    """Gives the records once; keeps what was committed."""

    def __init__(self, values: list[bytes]) -> None:
        self.left = [Message(offset, value) for offset, value in enumerate(values)]
        self.committed = 0

    def subscribe(self, *_: Any, **__: Any) -> None:
        """Nothing to do."""

    def consume(self, count: int, _: float) -> list[Message]:
        given, self.left = self.left[:count], self.left[count:]
        return given

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        del asynchronous
        self.committed = offsets[0].offset

    def close(self) -> None:
        """Nothing to do."""


class Rig:
    """A bridge with the outbound half, between a scripted broker and a fake Kafka."""

    def __init__(self, directory: Path, values: list[bytes]) -> None:
        self.broker, self.outlet, self.consumer = ScriptedBroker(), FakeOutlet(), FakeConsumer(values)
        limits = {"p.raw": 1_000_000, "p.dead-letter": 1_000_000}
        receiver = Receiver(self.outlet, Window(10, 1_000_000), Router("p.", limits), lambda: 0)  # type: ignore[arg-type]
        out = Outbound(self.consumer, self.outlet, prefix="p.", window=10, v5=True)  # type: ignore[arg-type]
        target = Target("127.0.0.1", self.broker.port, "c", True, 30, 86_400, 10)
        memory = FilterMemory(directory, "c")
        self.bridge = Bridge(target, {"te/#": 1}, memory, receiver, self.outlet, out, 2.0)  # type: ignore[arg-type]
        self.thread = run(self.bridge.run)

    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.outlet.values("p.dead-letter")]

    def end(self) -> None:
        self.bridge.stop()
        self.broker.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, request.param)
    yield rig
    rig.end()


def serve(peer: Peer, poison: bytes, got: list[bytes]) -> bool:
    """Acknowledge until the poison comes; False: it came, and the connection is closed."""
    while packet := peer.packet():
        if packet == b"\xc0":
            peer.send(b"\xd0\x00")
        elif packet[0] & 0xF0 == 0x30:
            got.append(packet)
            if packet.endswith(poison):
                peer.sock.close()
                return False
            at = packet.index(b"te/a") + 4
            peer.send(b"\x40\x02" + packet[at : at + 2])
            if packet.endswith(b"last"):
                return True
    raise AssertionError("the bridge went away")


@pytest.mark.parametrize("rig", [[b"one", b"poison", b"two", b"last"]], indirect=True)
def test_a_broker_that_closes_for_one_record_gets_all_others(rig: Rig) -> None:
    got: list[bytes] = []
    served = serve(rig.broker.accept(), b"poison", got)
    for _ in range(8):
        if served:
            break
        served = serve(rig.broker.accept(CONNACK_PRESENT), b"poison", got)
    assert served
    until(lambda: rig.consumer.committed == 4, "all is committed")
    (letter,) = rig.letters()
    assert (letter["reason"], letter["payload"]) == ("outbound_refused", "poison")
    assert "closed the connection 3 times" in letter["detail"]
    until(lambda: rig.bridge.snapshot.dead_letters == {"outbound_refused": 1}, "it is counted")
    assert sum(packet.endswith(b"poison") for packet in got) <= 5


@pytest.mark.parametrize("rig", [[b"%d" % number for number in range(12)]], indirect=True)
def test_a_lower_receive_maximum_of_the_next_connection_is_kept_and_the_order_too(rig: Rig) -> None:
    """What is sent beyond it makes the broker disconnect (MQTT 5, 3.3.4), at every reconnect again."""
    peer = rig.broker.accept()
    assert [peer.packet()[-1:] for _ in range(10)] == [b"%d" % number for number in range(10)], "the window is full"
    until(lambda: rig.bridge.snapshot.ready, "subscribed")
    peer.reset()
    peer = rig.broker.accept(b"\x20\x06\x01\x00\x03\x21\x00\x03")  # three at most
    got: list[bytes] = []
    for first in range(0, 12, 3):
        under_way = [peer.acknowledgement() for _ in range(3)]
        peer.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):  # no fourth one, however long it is waited for
            peer.packet()
        peer.sock.settimeout(10)
        assert all(bool(packet[0] & 8) == (first + place < 10) for place, packet in enumerate(under_way)), "DUP"
        places = [packet.index(b"te/a") + 4 for packet in under_way]
        got += [packet[at + 3 :] for packet, at in zip(under_way, places, strict=True)]
        acks = [b"\x40\x02" + packet[at : at + 2] for packet, at in zip(under_way, places, strict=True)]
        peer.send(b"".join(acks))
    assert got == [b"%d" % number for number in range(12)]
    until(lambda: rig.consumer.committed == 12, "all is committed")


@pytest.mark.parametrize("rig", [[b"x" * 200, b"last"]], indirect=True)
def test_a_limit_that_a_later_connection_tells_counts_for_what_is_under_way(rig: Rig) -> None:
    peer = rig.broker.accept()
    assert peer.packet().endswith(b"x" * 200)
    peer.reset()
    peer = rig.broker.accept(b"\x20\x08\x01\x00\x05\x27\x00\x00\x00\x64")  # at most 100 bytes
    assert serve(peer, b"none", [])
    until(lambda: [letter["reason"] for letter in rig.letters()] == ["too_large"], "the one that was under way")
    until(lambda: rig.consumer.committed == 2, "all is committed")

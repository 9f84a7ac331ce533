"""The bridge against a broker that sends what no good broker sends, at the worst moment."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_bridge import http
from headrace_bridge.bridge import STALLED_S, Bridge, Snapshot
from headrace_bridge.connection import READ_BYTES, RESERVE_BYTES, Connection, ConnectionLost, Target
from headrace_bridge.inflight import Window
from headrace_bridge.packets import text, variable
from headrace_bridge.progress import SHORT_S, Progress
from headrace_bridge.receive import Receiver
from headrace_bridge.record import Router
from headrace_bridge.subscriptions import FilterMemory
from tests.support.scripted_broker import CONNACK, CONNACK_PRESENT, SUBACK, FakeOutlet, ScriptedBroker, publish, run
from tests.support.streams_worker import until

LIMITS = {"p.raw": 1_000_000, "p.dead-letter": 1_000_000}


class Rig:
    """A running bridge between a scripted broker and a fake Kafka."""

    def __init__(self, directory: Path, *, window: int = 100, keep_alive_s: int = 30, v5: bool = True) -> None:
        self.broker = ScriptedBroker()
        self.outlet = FakeOutlet()
        self.receiver = Receiver(
            self.outlet, Window(window, 1_000_000), Router("p.", LIMITS), lambda: time.time_ns() // 1_000_000
        )  # type: ignore[arg-type]
        target = Target("127.0.0.1", self.broker.port, "c", v5, keep_alive_s, 86_400, window)
        self.bridge = Bridge(target, {"te/#": 1}, FilterMemory(directory, "c"), self.receiver, self.outlet, None, 2.0)  # type: ignore[arg-type]
        self.thread = run(self.bridge.run)

    def number(self, name: str) -> int:
        return self.bridge.snapshot.numbers.get(name, 0)

    def end(self) -> None:
        self.outlet.holding = False
        self.bridge.stop()
        self.broker.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.end()


def test_topics_that_no_client_should_send_stop_nobody(rig: Rig) -> None:
    peer = rig.broker.accept()
    odd = [
        b"te/\x01\x1f\x7f",
        b"te/\xff\xfe",
        b"$SYS/x",
        b"te/" + b"t" * 65_000,
        b"",
        b"te/+",
        b"te/ ",
        b"//",
        b"te/\0",
    ]
    for packet_id, topic in enumerate(odd, 1):
        peer.send(publish(topic, b"%d" % packet_id, packet_id))
    for packet_id in range(1, len(odd) + 1):
        assert peer.acknowledgement() == b"\x40" + packet_id.to_bytes(2, "big")
    assert rig.outlet.values() == [b"1", b"4", b"7", b"8", b"9"]
    assert rig.outlet.surely == [record.topic == "p.dead-letter" for record in rig.outlet.sent]
    letters = [json.loads(value) for value in rig.outlet.values("p.dead-letter")]
    assert [(letter["reason"], letter["payload"]) for letter in letters] == [
        ("invalid_topic", "2"), ("invalid_topic", "5"), ("invalid_topic", "6")
    ]  # fmt: skip
    until(lambda: rig.number("ignored") == 1, "the $ topic is counted")


def test_a_message_of_nothing_but_properties_is_a_dead_letter_and_costs_neither_time_nor_memory(rig: Rig) -> None:
    peer = rig.broker.accept()
    peer.sock.settimeout(60)
    many = b"\x26\0\0\0\0" * 2_000_000
    body = text(b"te/a") + b"\0\1" + variable(len(many)) + many + b"payload"
    peer.send(b"\x32" + variable(len(body)) + body + publish(b"te/b", b"next", 2))
    assert [peer.acknowledgement() for _ in range(2)] == [b"\x40\0\1", b"\x40\0\2"]
    assert rig.outlet.values() == [b"next"]
    (letter,) = (json.loads(value) for value in rig.outlet.values("p.dead-letter"))
    assert (letter["reason"], letter["topic"], letter["payload"]) == ("invalid_properties", "te/a", "payload")


def test_nothing_is_acknowledged_before_kafka_has_it(rig: Rig) -> None:
    peer = rig.broker.accept()
    rig.outlet.holding = True
    peer.send(publish(b"te/a", b"1", 1) + publish(b"te/a", b"2", 2))
    until(lambda: len(rig.outlet.sent) == 2, "both are produced")
    peer.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        peer.acknowledgement()
    peer.sock.settimeout(10)
    rig.outlet.holding = False
    assert [peer.acknowledgement(), peer.acknowledgement()] == [b"\x40\0\1", b"\x40\0\2"]


def test_a_permanent_error_of_kafka_becomes_a_dead_letter(rig: Rig) -> None:
    rig.outlet.reasons[b"bad"] = "invalid_record"
    peer = rig.broker.accept()
    peer.send(publish(b"te/a", b"bad", 1) + publish(b"te/a", b"good", 2))
    assert [peer.acknowledgement(), peer.acknowledgement()] == [b"\x40\0\1", b"\x40\0\2"]
    (letter,) = [json.loads(value) for value in rig.outlet.values("p.dead-letter")]
    assert (letter["reason"], letter["detail"], letter["payload"]) == ("invalid_record", "why", "bad")


def test_one_byte_at_a_time_and_a_reset_inside_a_packet(rig: Rig) -> None:
    peer = rig.broker.accept()
    for byte in publish(b"te/a", b"slow", 1):
        peer.send(bytes((byte,)))
        time.sleep(0.001)
    assert peer.acknowledgement() == b"\x40\0\1"
    peer.send(publish(b"te/a", b"cut", 2)[:-2])
    peer.reset()
    peer = rig.broker.accept(CONNACK_PRESENT)
    peer.send(publish(b"te/a", b"cut", 2, dup=True))
    assert peer.acknowledgement() == b"\x40\0\2"
    assert rig.outlet.values() == [b"slow", b"cut"]


def test_a_late_report_is_no_acknowledgement_on_the_next_connection(rig: Rig) -> None:
    peer = rig.broker.accept()
    rig.outlet.holding = True
    peer.send(publish(b"te/a", b"old", 1))
    until(lambda: len(rig.outlet.sent) == 1, "produced")
    peer.reset()
    peer = rig.broker.accept(CONNACK_PRESENT)
    rig.outlet.holding = False
    until(lambda: rig.outlet.queued == 0, "Kafka has it")
    peer.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        peer.acknowledgement()
    peer.sock.settimeout(10)
    peer.send(publish(b"te/a", b"old", 1, dup=True))
    assert peer.acknowledgement() == b"\x40\0\1"
    until(lambda: rig.number("acknowledged") == 1, "acknowledged once")
    assert (rig.number("received"), rig.number("redelivered"), rig.number("in_flight")) == (1, 1, 0)


def test_qos_2_is_produced_once_and_answered_in_all_steps(rig: Rig) -> None:
    peer = rig.broker.accept()
    peer.send(publish(b"te/a", b"x", 9, qos=2))
    assert peer.acknowledgement() == b"\x50\0\x09"
    peer.reset()
    peer = rig.broker.accept(CONNACK_PRESENT)
    peer.send(publish(b"te/a", b"x", 9, qos=2, dup=True))
    assert peer.acknowledgement() == b"\x50\0\x09"
    peer.send(b"\x62\x02\x00\x09")
    assert peer.acknowledgement() == b"\x70\0\x09"
    peer.send(publish(b"te/a", b"y", 9, qos=2))
    assert peer.acknowledgement() == b"\x50\0\x09"
    assert rig.outlet.values() == [b"x", b"y"]


def test_a_broker_that_ignores_the_window_is_held_back_by_not_reading(tmp_path: Path) -> None:
    rig = Rig(tmp_path, window=10, keep_alive_s=1)
    peer = rig.broker.accept()
    rig.outlet.holding = True
    peer.send(b"".join(publish(b"te/a", b"%d" % number, number) for number in range(1, 501)))
    until(lambda: rig.number("in_flight") == 10, "the window is full")
    for _ in range(5):  # half a keep-alive each
        assert peer.packet() == b"\xc0", "nothing but PINGREQ"
        peer.send(b"\xd0\0")
    assert len(rig.outlet.sent) == 10
    rig.outlet.holding = False
    for number in range(1, 501):
        assert peer.acknowledgement() == b"\x40" + number.to_bytes(2, "big")
    assert rig.number("connection_losses") == 0
    rig.end()


def test_silence_does_not_count_while_a_slow_kafka_keeps_the_bridge_from_reading(tmp_path: Path) -> None:
    """The answers to its PINGREQs are behind what it has read already and takes one by one."""
    rig = Rig(tmp_path, window=10, keep_alive_s=1)
    rig.outlet.one_in_s = 0.015
    peer = rig.broker.accept()
    peer.send(b"".join(publish(b"te/a", b"%d" % number, number) for number in range(1, 181)))
    last = 0
    while last < 180:
        packet = peer.packet()
        assert packet, "the bridge ends the connection"
        if packet == b"\xc0":
            peer.send(b"\xd0\0")
        else:
            last = int.from_bytes(packet[2:4], "big")
    assert rig.number("connection_losses") == 0
    rig.end()


def test_a_silent_connection_is_opened_anew(tmp_path: Path) -> None:
    rig = Rig(tmp_path, keep_alive_s=1)
    peer = rig.broker.accept()
    assert peer.packet() == b"\xc0"
    again = rig.broker.accept(CONNACK_PRESENT)  # no PINGRESP, no FIN: half open
    again.send(publish(b"te/a", b"1", 1))
    assert again.acknowledgement() == b"\x40\0\1"
    rig.end()


def test_a_server_that_wants_no_keep_alive_is_watched_all_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path, keep_alive_s=1)
    peer = rig.broker.accept(b"\x20\x06\x01\x00\x03\x13\0\0")
    assert peer.packet()[0] == 0x82, "SUBSCRIBE"
    assert peer.packet() == b"\xc0", "PINGREQ"
    rig.broker.accept(CONNACK_PRESENT)
    rig.end()


def test_a_half_open_connection_is_noticed_while_the_window_is_full(tmp_path: Path) -> None:
    rig = Rig(tmp_path, window=10, keep_alive_s=1)
    peer = rig.broker.accept()
    rig.outlet.holding = True
    peer.send(b"".join(publish(b"te/a", b"%d" % number, number) for number in range(1, 16)))
    until(lambda: rig.number("in_flight") == 10, "the window is full")
    again = rig.broker.accept(CONNACK_PRESENT)  # no PINGRESP came
    assert rig.number("in_flight") == 10
    rig.outlet.holding = False
    again.send(b"".join(publish(b"te/a", b"%d" % number, number, dup=True) for number in range(1, 16)))
    for number in range(1, 16):
        assert again.acknowledgement() == b"\x40" + number.to_bytes(2, "big")
    rig.end()


def test_a_flood_is_read_into_the_reserve_and_no_further(tmp_path: Path) -> None:
    rig = Rig(tmp_path, window=10)
    peer = rig.broker.accept()
    rig.outlet.holding = True
    flood = publish(b"te/a", b"x" * 1_000, 1) * 40_000
    sender = run(lambda: peer.sock.settimeout(60) or peer.send(flood))
    connection = rig.bridge._connection
    assert connection is not None
    until(lambda: not connection.may_read, "the reserve is full")
    until(lambda: rig.number("in_flight") == 10, "the window is full")
    assert connection.decoder.held < RESERVE_BYTES + READ_BYTES
    assert sender.is_alive(), "the broker is held back"
    rig.outlet.holding = False
    until(lambda: rig.number("received") == 40_000, "all is read in the end")
    rig.end()


def test_a_malformed_packet_ends_the_connection_and_is_counted(rig: Rig) -> None:
    peer = rig.broker.accept()
    peer.send(b"\x36\x05\x00\x01t\x00\x01")
    assert peer.packet() == b"\xe0\x81", "DISCONNECT: malformed packet"
    peer = rig.broker.accept(CONNACK_PRESENT)
    peer.send(b"\xf0\x02\x18\x00")
    assert peer.packet() == b"\xe0\x82", "AUTH is a protocol error here"
    peer = rig.broker.accept(CONNACK_PRESENT)
    peer.send(publish(b"te/a", b"1", 1))
    assert peer.acknowledgement() == b"\x40\0\1"
    assert rig.number("decode_errors") == 2


@pytest.mark.parametrize("v5", [True, False])
def test_a_packet_that_stays_malformed_is_named_and_what_comes_before_it_is_produced_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], v5: bool
) -> None:
    """The broker's queue: two good messages, one without packet id, a good one. Nothing behind it is acknowledged."""
    rig = Rig(tmp_path, v5=v5)
    present = CONNACK_PRESENT if v5 else b"\x20\x02\x01\x00"
    good = [publish(b"te/a", b"%d" % number, number, v5=v5) for number in (1, 2, 4)]
    bad = publish(b"te/poison", b"3", 0, v5=v5)
    peer = rig.broker.accept(v5=v5)
    rig.outlet.holding = True
    peer.send(good[0] + good[1] + bad + good[2])
    until(lambda: rig.number("in_flight") == 2, "the good ones are produced")
    rig.outlet.holding = False
    assert [peer.acknowledgement(), peer.acknowledgement()] == [b"\x40\0\1", b"\x40\0\2"]
    assert peer.packet() == (b"\xe0\x81" if v5 else b""), "the reason, where there is one, and nothing more"
    peer.sock.close()
    assert rig.bridge.snapshot.stuck == ""
    for lost in range(1, 4):
        peer = rig.broker.accept(present, v5=v5)
        peer.send(bad + good[2])
        assert peer.packet() == (b"\xe0\x81" if v5 else b"")
        peer.sock.close()
        until(lambda lost=lost: rig.number("fruitless_in_a_row") == lost, "counted")  # type: ignore[misc]
    assert (rig.bridge.snapshot.stuck, rig.bridge.snapshot.ready) == ("malformed_packet", False)
    assert rig.bridge.snapshot.fruitless == {"malformed_packet": 3}
    assert rig.number("decode_errors") == 4
    assert rig.outlet.values() == [b"1", b"2"]
    peer = rig.broker.accept(present, v5=v5)
    assert not rig.bridge.snapshot.ready, "connected is not yet progress"
    peer.send(good[2])
    assert peer.acknowledgement() == b"\x40\0\4"
    until(lambda: rig.bridge.snapshot.ready, "it goes on")
    assert (rig.bridge.snapshot.stuck, rig.number("fruitless_in_a_row")) == ("", 0)
    rig.end()
    said = capsys.readouterr().out
    assert "PUBLISH without packet id" in said
    assert bad[:24].hex() in said
    assert said.count("no progress") == 1


def test_a_broker_that_ends_every_connection_is_named_too(rig: Rig) -> None:
    rig.broker.accept().send(b"\xe0\x02\x95\x00")
    for _ in range(2):
        rig.broker.accept(CONNACK_PRESENT).send(publish(b"te/a", b"1", 1, dup=True) + b"\xe0\x02\x95\x00")
    until(lambda: rig.bridge.snapshot.stuck == "disconnected_by_broker", "named")
    peer = rig.broker.accept(CONNACK_PRESENT)
    peer.send(publish(b"te/a", b"1", 1, dup=True))
    assert peer.acknowledgement() == b"\x40\0\1"
    until(lambda: rig.bridge.snapshot.ready, "it goes on")
    assert rig.number("received") == rig.number("acknowledged") == 1


def test_a_quiet_broker_that_restarts_is_ready_again_as_soon_as_a_connection_lasts(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing to acknowledge it cannot be told from something bad in the session, but by time."""
    now = [time.monotonic()]
    rig.bridge._progress = Progress(lambda: now[0])
    for connack in (CONNACK, CONNACK_PRESENT, CONNACK):
        peer = rig.broker.accept(connack)
        until(lambda: rig.bridge.snapshot.ready, "subscribed")
        peer.reset()
        until(lambda: not rig.bridge.snapshot.connected, "the end is seen")
    assert rig.bridge.snapshot.stuck == "connection_lost"
    rig.broker.accept(CONNACK_PRESENT)
    until(lambda: rig.bridge.snapshot.subscribed, "connected")
    now[0] += SHORT_S
    until(lambda: rig.bridge.snapshot.ready, "no message is needed for that")
    assert (rig.bridge.snapshot.stuck, rig.number("fruitless_in_a_row")) == ("", 0)
    assert "to blame: the network, the broker" in capsys.readouterr().out


def test_a_broker_that_loses_its_sessions_makes_no_progress_by_that(rig: Rig) -> None:
    """What it owed is accounted for at each connection, and yet nothing was ever acknowledged."""
    for lost in range(1, 4):
        rig.outlet.holding = True
        peer = rig.broker.accept()
        peer.send(publish(b"te/a", b"1", 1))
        until(lambda lost=lost: len(rig.outlet.sent) == lost, "received")  # type: ignore[misc]
        peer.reset()
        until(lambda lost=lost: rig.number("fruitless_in_a_row") == lost, "counted")  # type: ignore[misc]
    assert rig.bridge.snapshot.stuck == "connection_lost"
    assert rig.number("received") == rig.number("acknowledged") + rig.number("in_flight") == 3


def test_a_broker_without_the_session_is_subscribed_again_and_the_loss_is_told(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.broker.accept().reset()
    until(lambda: rig.number("connection_losses") == 1, "the end is seen")
    assert rig.number("sessions_lost") == 0, "the first session of all is not a lost one"
    peer = rig.broker.accept()  # asserts SUBSCRIBE
    peer.send(publish(b"te/a", b"1", 1))
    assert peer.acknowledgement() == b"\x40\0\1"
    assert rig.number("sessions_lost") == 1
    assert "has no session any more" in capsys.readouterr().out
    again = Rig(tmp_path)  # the next process knows of the session, too
    again.broker.accept()
    until(lambda: again.number("sessions_lost") == 1, "told")
    again.end()


def test_a_new_session_that_was_cut_before_its_suback_is_subscribed_the_next_time(rig: Rig) -> None:
    """The broker has the session then, but no filter: nothing would ever arrive, and nobody would notice."""
    peer = rig.broker.accept()
    until(lambda: rig.bridge.snapshot.ready, "subscribed")
    peer.reset()
    peer = rig.broker.accept(b"\x20\x06\x00\x00\x03\x13\0\x1e")  # another session; reads nothing more
    peer.reset()
    peer = rig.broker.accept(CONNACK_PRESENT)
    assert peer.packet()[0] == 0x82, "SUBSCRIBE, though there is a session"
    assert not rig.bridge.snapshot.ready
    peer.send(SUBACK)
    until(lambda: rig.bridge.snapshot.ready, "ready")


def test_the_session_is_asked_to_stay_for_a_day_and_the_window_is_told(rig: Rig) -> None:
    connect = rig.broker.accept().connect
    assert connect[1:8] == b"\0\4MQTT\5"
    assert connect[8] & 2 == 0, "no clean start"
    assert b"\x11" + (86_400).to_bytes(4, "big") + b"\x21" + (100).to_bytes(2, "big") in connect


def test_a_session_that_the_broker_keeps_for_less_than_asked_is_said(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then an outage of the bridge that is longer loses what the broker has queued for it."""
    server = http.serve(lambda: rig.bridge.snapshot, "127.0.0.1", 0)

    def told() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return [line for line in lines if line.startswith("headrace_bridge_session_expiry_seconds")]

    assert told() == [], "nobody has said anything yet"
    rig.broker.accept(CONNACK_PRESENT).reset()
    until(lambda: told() == ["headrace_bridge_session_expiry_seconds 86400.0"], "nothing is said: as asked for")
    assert "shorter session expiry" not in capsys.readouterr().out
    rig.broker.accept(b"\x20\x08\x01\x00\x05\x11\x00\x00\x00\x3c")
    until(lambda: told() == ["headrace_bridge_session_expiry_seconds 60.0"], "granted")
    line = capsys.readouterr().out
    assert "the broker grants a shorter session expiry" in line
    assert "60" in line
    server.shutdown()


def test_a_refused_subscription_is_tried_again_and_never_ready(rig: Rig) -> None:
    rig.broker.accept(suback=b"\x90\x04\x00\x01\x00\x87")
    assert not rig.bridge.snapshot.ready
    rig.broker.accept()
    until(lambda: rig.bridge.snapshot.ready, "ready after all")


def test_the_end_is_disconnect_and_reading_to_the_end(rig: Rig) -> None:
    peer = rig.broker.accept()
    peer.send(publish(b"te/a", b"1", 1))
    assert peer.acknowledgement() == b"\x40\0\1"
    rig.bridge.stop()
    peer.send(publish(b"te/a", b"2", 2) * 1000)  # unread input must not become a reset
    packet = peer.acknowledgement()
    while packet == b"\x40\0\2":
        packet = peer.acknowledgement()
    assert packet == b"\xe0"
    assert peer.packet() == b""


def test_the_wait_after_a_malformed_packet_is_part_of_the_time_to_stop(tmp_path: Path) -> None:
    """SIGTERM comes while the bridge waits for Kafka, which is away, to acknowledge what came before."""
    rig = Rig(tmp_path)
    settled: list[float] = []
    settle = rig.bridge._settle

    def spy(seconds: float) -> None:
        settled.append(seconds)
        if len(settled) == 1:
            rig.bridge.stop()
            rig.bridge._stop_by -= 60  # a minute goes by
            return
        settle(seconds)

    rig.bridge._settle = spy  # type: ignore[method-assign]
    rig.outlet.holding = True
    peer = rig.broker.accept()
    peer.send(publish(b"te/a", b"1", 1) + publish(b"te/a", b"2", 0))
    until(lambda: len(settled) == 2, "it ends")
    assert settled[1] < 0
    rig.end()


def test_an_unsubscription_that_the_broker_refuses_is_asked_for_again(tmp_path: Path) -> None:
    memory = FilterMemory(tmp_path, "c")
    memory.save({"te/#", "old/#"})
    for codes, kept in ((b"\x87", {"te/#", "old/#"}), (b"\0", {"te/#"})):
        rig = Rig(tmp_path)
        peer = rig.broker.accept(CONNACK_PRESENT)
        assert peer.packet()[-7:] == b"\0\5old/#", "UNSUBSCRIBE"
        assert peer.packet()[0] == 0x82, "SUBSCRIBE"
        peer.send(b"\xb0\x04\0\2\0" + codes + SUBACK)
        until(lambda rig=rig: rig.bridge.snapshot.ready, "subscribed")  # type: ignore[misc]
        assert memory.load() == kept
        rig.end()


def test_an_unsubscription_that_was_cut_before_its_unsuback_is_asked_for_at_the_next_connect(tmp_path: Path) -> None:
    """Else a filter that was taken out of the settings would be delivered until the next start of the bridge."""
    memory = FilterMemory(tmp_path, "c")
    memory.save({"te/#", "old/#"})
    rig = Rig(tmp_path)
    peer = rig.broker.accept(CONNACK_PRESENT)
    assert (peer.packet()[-7:], peer.packet()[0]) == (b"\0\5old/#", 0x82)
    peer.send(SUBACK)
    until(lambda: rig.bridge.snapshot.ready, "subscribed")
    peer.reset()
    peer = rig.broker.accept(CONNACK_PRESENT)
    assert (peer.packet()[-7:], peer.packet()[0]) == (b"\0\5old/#", 0x82)
    peer.send(b"\xb0\x04\0\2\0\0" + SUBACK)
    until(lambda: rig.bridge.snapshot.ready, "subscribed again")
    assert memory.load() == {"te/#"}
    rig.end()


def test_a_lower_qos_than_asked_for_is_said(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.broker.accept(suback=SUBACK[:-1] + b"\0")
    until(lambda: rig.bridge.snapshot.ready, "subscribed all the same")
    assert "grants a lower QoS" in capsys.readouterr().out


def test_who_is_no_broker_is_said_in_one_line() -> None:
    broker = ScriptedBroker()
    target = Target("127.0.0.1", broker.port, "c", True, 30, 86_400, 10)
    for answer, words in ((b"\x20\x03\x00\x87\x00", "not authorized"), (b"\0\0", "not MQTT"), (b"\xd0\0", "Pong")):
        thread = run(lambda answer=answer: broker.accept(answer).packet() and None)  # type: ignore[misc]
        with pytest.raises(ConnectionLost, match=words):
            Connection.connect(target)
        thread.join(10)
    broker.close()
    with pytest.raises(ConnectionLost, match=str(broker.port)):
        Connection.connect(target)
    with pytest.raises(ConnectionLost, match=r"^no\.\.host:"):
        Connection.connect(replace(target, host="no..host"))


def test_health_ready_and_metrics(rig: Rig) -> None:
    server = http.serve(lambda: rig.bridge.snapshot, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.server_address[1]}"

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(base + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert get("/healthz")[0] == 200
    assert get("/readyz")[0] == 503
    assert get("/nothing")[0] == 404
    peer = rig.broker.accept()
    peer.send(publish(b"te/a", b"1", 1))
    peer.acknowledgement()
    until(lambda: get("/readyz")[0] == 200, "ready")
    until(lambda: "headrace_bridge_acknowledged_total 1.0" in get("/metrics")[1], "counted")
    text = get("/metrics")[1]
    assert 'headrace_bridge_publishes_total{qos="1"} 1.0' in text
    assert 'headrace_bridge_kafka_latency_seconds_bucket{le="+Inf"} 1.0' in text
    server.shutdown()


def test_health_fails_when_the_loop_stands_still() -> None:
    """Not when a broker is away: a restart would not help."""
    now = Snapshot()
    server = http.serve(lambda: now, "127.0.0.1", 0)

    def status() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/healthz", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status() == 200, "it waits for Kafka"
    now = Snapshot(made_s=time.monotonic())
    assert status() == 200, "it turns, with nobody there"
    now = Snapshot(made_s=time.monotonic() - STALLED_S, connected=True)
    assert status() == 503
    server.shutdown()


def test_all_that_an_operator_asks_for_is_among_the_metrics(rig: Rig) -> None:
    server = http.serve(lambda: rig.bridge.snapshot, "127.0.0.1", 0)

    def samples() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=5) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if line[0] != "#"]
        return {name.removeprefix("headrace_bridge_"): float(value) for name, _, value in lines}

    peer = rig.broker.accept()
    rig.outlet.holding = True
    peer.send(publish(b"te/a", b"12345", 1) + publish(b"te/a", b"1", 2, qos=2) + publish(b"te/a", b"1", qos=0))
    until(lambda: samples()["in_flight"] == 3, "all three are in flight")
    found = samples()
    assert [found[f'publishes_total{{qos="{qos}"}}'] for qos in range(3)] == [1, 1, 1]
    assert found["in_flight_bytes"] == 3 * 4 + 7
    assert found["kafka_queue"] == 3
    assert 0 <= found["oldest_in_flight_seconds"] < 60
    for name in ("mqtt_up", "subscribed", "kafka_up"):
        assert found[name] == 1
    names = ("produced", "acknowledged", "retries", "reconnects", "decode_errors", "publish_sent", "publish_acked")
    assert all(found[f"{name}_total"] == 0 for name in names)
    peer.reset()
    until(lambda: samples()["mqtt_up"] == 0, "the end is seen")
    found = samples()
    assert found["received_total"] == found["acknowledged_total"] + found["in_flight"] == 3
    assert found["oldest_in_flight_seconds"] >= 0
    rig.broker.accept(CONNACK_PRESENT)
    rig.outlet.holding = False
    until(lambda: samples()["reconnects_total"] == 1, "it is back")
    until(lambda: samples()["produced_total"] == 3, "Kafka has all")
    assert samples()["received_total"] == samples()["acknowledged_total"] + samples()["in_flight"] == 3
    server.shutdown()

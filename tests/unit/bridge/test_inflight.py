"""Acknowledge in order, only what is settled, never on a later connection; and the account holds at all times."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_bridge.inflight import PROPERTY_BYTES, Entry, Window
from headrace_bridge.packets import CONTENT_TYPE, USER_PROPERTY, Properties, Publish

IDENTITY = b"the message"


def arrive(window: Window, packet_id: int, qos: int = 1, *, dup: bool = False, size: int = 1) -> Entry:
    return came(window, packet_id, qos, dup=dup, size=size)[0]


def came(window: Window, packet_id: int, qos: int, *, dup: bool, size: int = 1) -> tuple[Entry, bool]:
    message = Publish(b"t", b"x" * (size - 1), qos, retain=False, dup=dup, packet_id=packet_id)
    return window.arrived(message, 0, IDENTITY)


def test_a_message_waits_for_all_before_it() -> None:
    window = Window(10, 100)
    first, second, third = (arrive(window, n) for n in (1, 2, 3))
    window.settle(third)
    window.settle(second)
    assert window.take() == []
    window.settle(first)
    assert window.take() == [first, second, third]
    assert (window.received, window.acknowledged, window.in_flight) == (3, 3, 0)


def test_a_late_report_does_not_acknowledge_on_the_next_connection() -> None:
    window = Window(10, 100)
    old = arrive(window, 1)
    window.disconnected()
    assert window.in_flight == 1
    new = arrive(window, 1, dup=True)
    window.settle(old)
    assert window.take() == []
    window.settle(new)
    assert window.take() == [new]
    assert (window.received, window.redelivered, window.acknowledged) == (1, 1, 1)


def test_a_packet_id_used_anew_closes_the_old_account() -> None:
    window = Window(10, 100)
    arrive(window, 1)
    window.disconnected()
    arrive(window, 1, dup=False)
    assert (window.received, window.acknowledged, window.in_flight) == (2, 1, 1)


def test_a_lost_session_owes_nothing() -> None:
    window = Window(10, 100)
    arrive(window, 1, 2)
    window.disconnected()
    window.session_lost()
    assert (window.received, window.acknowledged, window.in_flight) == (1, 1, 0)
    assert came(window, 1, 2, dup=False)[1], "another message under the same id is produced"


def test_full_by_count_or_by_bytes_and_old_connections_count() -> None:
    window = Window(3, 100)
    entries = [arrive(window, 1), arrive(window, 2)]
    assert window.room == 1
    window.disconnected()
    assert window.room == 1, "Kafka does not have them yet"
    window.settle(entries[0])
    assert window.room == 2
    arrive(window, 3, size=100)
    assert window.room == 0


def test_properties_count_with_what_they_take_in_memory() -> None:
    window = Window(3, 1000)
    properties: Properties = ((USER_PROPERTY, (b"name", b"value")), (CONTENT_TYPE, b"x"), (1, 1), (11, 5))
    entry, _ = window.arrived(
        Publish(b"te/a", b"12345", 1, retain=False, dup=False, packet_id=1, properties=properties), 0
    )
    assert entry.size == 9 + 4 * PROPERTY_BYTES + 10
    assert window.room == 0
    window.settle(entry)
    assert window.outstanding_bytes == 0


def test_qos_2_is_produced_once_over_connections_until_released() -> None:
    window = Window(10, 100)
    first = arrive(window, 7, 2)
    window.disconnected()
    again, fresh = came(window, 7, 2, dup=True)
    assert (again, fresh) == (first, False)
    window.settle(first)
    assert window.take() == [first]
    repeat, fresh = came(window, 7, 2, dup=True)
    assert not fresh
    assert window.take() == [repeat]
    window.released(7)
    assert came(window, 7, 2, dup=False)[1]


def test_a_qos_2_id_that_the_broker_gave_to_another_message_does_not_hide_it() -> None:
    """A broker that was killed and reads an older file has forgotten that the id is in use."""
    window = Window(10, 100)
    first = arrive(window, 7, 2)
    window.settle(first)
    assert window.take() == [first]
    window.disconnected()
    other = Publish(b"t", b"other", 2, retain=False, dup=False, packet_id=7)
    entry, fresh = window.arrived(other, 0, b"another one")
    assert fresh
    assert window.arrived(other._replace(dup=True), 0, b"another one") == (entry, False)
    window.settle(entry)
    assert (window.outstanding, window.received - window.acknowledged, window.in_flight) == (0, 2, 2)
    assert window.take() == [entry, entry]


@dataclass(eq=False)
class Message:
    """What the model's broker knows of one message."""

    number: int
    packet_id: int
    qos: int
    entry: Entry | None = None
    copies: list[Entry] = field(default_factory=list)


class Broker(RuleBasedStateMachine):
    """A broker that keeps MQTT's rules beside the window: it sends again, in order, what was not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window(6, 1_000)
        self.sent: list[Message] = []  # on this connection, not acknowledged, in order
        self.again: list[Message] = []  # of former connections, to be sent again
        self.unreported: list[Entry] = []
        self.in_kafka: set[int] = set()  # numbers
        self.of: dict[int, int] = {}  # id(entry) to number
        self.count = 0
        self.acknowledged = 0
        self.dead_zero = 0
        self.half: set[int] = set()  # QoS 2 ids waiting for PUBREL

    def free_id(self) -> int:
        used = {message.packet_id for message in self.sent + self.again} | self.half
        return next(n for n in range(1, 100) if n not in used)

    def deliver(self, message: Message, *, dup: bool) -> None:
        entry, fresh = came(self.window, message.packet_id, message.qos, dup=dup)
        message.entry = entry
        self.sent.append(message)
        if fresh:
            self.of[id(entry)] = message.number
            message.copies.append(entry)
            self.unreported.append(entry)
        assert message.qos < 2 or len(message.copies) == 1, "QoS 2 is produced once"

    @precondition(lambda self: self.window.room > 0 and not self.again)
    @rule(qos=st.integers(0, 2))
    def publish(self, qos: int) -> None:
        self.count += 1
        self.deliver(Message(self.count, self.free_id() if qos else 0, qos), dup=False)

    @precondition(lambda self: self.window.room > 0 and self.again)
    @rule()
    def send_again(self) -> None:
        self.deliver(self.again.pop(0), dup=True)

    @precondition(lambda self: self.unreported)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        entry = self.unreported.pop(data.draw(st.integers(0, len(self.unreported) - 1)))
        self.in_kafka.add(self.of[id(entry)])
        self.window.settle(entry)

    @rule()
    def acknowledge(self) -> None:
        for entry in self.window.take():
            message = self.sent.pop(0)
            assert message.entry is entry, "in order of arrival, on this connection"
            assert message.number in self.in_kafka, "never before Kafka has it"
            if message.qos == 2:
                self.half.add(message.packet_id)

    @precondition(lambda self: self.half)
    @rule()
    def release(self) -> None:
        self.window.released(self.half.pop())

    @rule()
    def disconnect(self) -> None:
        self.window.disconnected()
        self.again = [message for message in self.sent if message.qos] + self.again
        self.sent = []

    @rule()
    def lose_the_session(self) -> None:
        self.disconnect()
        self.again = []
        self.half = set()
        self.window.session_lost()

    @invariant()
    def the_account_holds(self) -> None:
        window = self.window
        assert window.received == window.acknowledged + window.in_flight
        assert window.received == self.count
        assert window.outstanding == len(self.unreported) == window.outstanding_bytes
        assert window.outstanding <= 6

    def teardown(self) -> None:
        while self.unreported or self.again:
            while self.unreported:
                entry = self.unreported.pop()
                self.in_kafka.add(self.of[id(entry)])
                self.window.settle(entry)
            self.acknowledge()
            if self.again and self.window.room:
                self.send_again()
        self.acknowledge()
        assert self.window.in_flight == 0, "in the end all is acknowledged"


TestBroker = Broker.TestCase
TestBroker.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)

"""What counts as published."""

from __future__ import annotations

import json

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from headrace.publisher import Client, digest, new_run
from headrace.telemetry import Message


def answered(client: Client, name: str) -> None:
    """The broker answers one message, as paho tells it."""
    client._client.on_publish(client._client, None, 1, ReasonCode(PacketTypes.PUBACK, name), None)  # type: ignore[misc]


def test_only_what_the_broker_took_is_acknowledged():
    client = Client("127.0.0.1", 1)
    for number in range(3):
        client.publish(Message("te/a///m/x", json.dumps({"n": number}).encode(), event_ms=number))
    answered(client, "Success")
    answered(client, "Not authorized")
    answered(client, "No matching subscribers")
    assert (client.sent, client.acknowledged) == (3, 2)
    assert client.wait(0) == 1


def test_messages_are_remembered_by_topic_and_payload():
    client = Client("127.0.0.1", 1)
    twice = Message("te/a///m/x", b"{}", event_ms=5)
    for message in (twice, twice, Message("te/a///m/y", b"{}", event_ms=5, held=True)):
        client.publish(message)
    assert client.messages == {digest("te/a///m/x", b"{}"): 2, digest("te/a///m/y", b"{}"): 1}
    assert set(client.published_ms) == {("te/a///m/x", 5)}


def test_topic_and_payload_cannot_be_mixed_up():
    assert digest("a", b"bc") != digest("ab", b"c")


def test_the_first_time_of_a_message_that_goes_out_twice_counts():
    client = Client("127.0.0.1", 1)
    message = Message("te/a///m/x", b"{}", event_ms=5)
    client.publish(message)
    client.published_ms["te/a///m/x", 5] = 7
    client.publish(message)
    assert client.published_ms["te/a///m/x", 5] == 7


def test_a_run_is_one_topic_segment():
    assert not set("/+#") & set(new_run())

"""No dead letter is larger than what the topic must take at least, and a topic that takes less ends the start."""

from __future__ import annotations

import pytest

from headrace_bridge.__main__ import check_letters
from headrace_bridge.outbound import Outbound
from headrace_bridge.packets import Publish
from headrace_bridge.record import LETTER_BYTES, Record, Refusal, Router
from headrace_bridge.settings import BridgeSettings
from headrace_core.errors import ConfigError
from tests.support.scripted_broker import FakeOutlet
from tests.unit.bridge.test_refusals import FakeConsumer, Message

LARGE = 1_000_000
TOPICS = [b"\x01" * 65_535, b"+" * 65_535, b"\xff" * 65_535, "\U0001f600".encode() * 16_383]
PAYLOADS = [b"\x01" * LARGE, b"x" * LARGE, b"\xff" * LARGE, b'"' * 65_536, b"\x01\n" * 60_000]
BATCH_BYTES = 256


def size(letter: Record) -> int:
    """Upper estimate of the letter in a batch of its own."""
    headers = sum(len(name) + len(value) + 8 for name, value in letter.headers)
    return BATCH_BYTES + len(letter.key or b"") + len(letter.value) + headers


@pytest.mark.parametrize("topic", TOPICS, ids=lambda raw: repr(raw[:3]))
@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda raw: repr(raw[:3]))
def test_no_letter_is_larger(topic: bytes, payload: bytes) -> None:
    message = Publish(topic, payload, 1, False, False, 1)
    letter = Router("p.", {"p.raw": LARGE}).dead_letter(message, Refusal("invalid_topic", "d" * 200), 1)
    assert size(letter) <= LETTER_BYTES
    outlet, record = FakeOutlet(), Message(0, payload)
    record.key = lambda: b"+" + topic * 12
    consumer = FakeConsumer([])
    consumer.left = [record]
    Outbound(consumer, outlet, prefix="p.", window=10, v5=True).turn()  # type: ignore[arg-type]
    (sent,) = outlet.sent
    assert size(sent) <= LETTER_BYTES


def test_a_topic_that_takes_less_is_named() -> None:
    settings = BridgeSettings(prefix="p.")
    check_letters(settings, {"p.dead-letter": LETTER_BYTES})
    with pytest.raises(ConfigError, match=r"^topic p\.dead-letter: max\.message\.bytes is 655359, must be 655360"):
        check_letters(settings, {"p.dead-letter": LETTER_BYTES - 1})

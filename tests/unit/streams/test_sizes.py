"""What is too large is known before a broker sees it, and becomes a dead letter that the topic takes."""

from __future__ import annotations

import json

import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState
from headrace_streams.sizes import BATCH_OVERHEAD, LEAST_BYTES, Bounded, Limits, Outgoing, record_size

NAMES = st.text("abc_", min_size=1, max_size=200)
SIZES = st.integers(0, 70_000) | st.sampled_from([127, 128, 16_383, 16_384])
RECORD = Record(2, 7, 1_000, b"te", b"payload", (("topic", b"te/a/b/c/d/m/t"),))


def emission(size: int, topic: str = "routed", key: bytes | None = b"te", value: bytes | None = None) -> Emission:
    headers = (("id", b"counting:2:7:0"), ("receipt_time", b"900"), ("topic", b"te/a/b/c/d/m/t"))
    return Emission(topic, key, b"x" * size if value is None else value, headers, 2)


def put_out(*emissions: Emission, limit: int = LEAST_BYTES) -> Outgoing:
    outgoing = Outgoing("counting", Limits(dict.fromkeys(("routed", "dead-letter", "replies", "outbound"), limit)))
    outgoing.emissions += emissions
    outgoing.check(RECORD, 0)
    return outgoing


@settings(max_examples=60, deadline=None)
@given(key=SIZES, value=SIZES, headers=st.lists(st.tuples(NAMES, SIZES), max_size=8))
def test_no_batch_is_larger_than_reckoned(key: int, value: int, headers: list[tuple[str, int]]) -> None:
    one = Emission("t", bytes(key), bytes(value), tuple((name, bytes(size)) for name, size in headers))
    batch = BatchBuilder(1, 0)
    assert batch.append(timestamp=2**41, key=one.key, value=one.value, headers=list(one.headers)) is not None
    assert len(batch._build()) <= record_size(one) + BATCH_OVERHEAD


def test_what_just_fits_passes_and_a_byte_more_does_not() -> None:
    rest = record_size(emission(0))
    fits, more = (emission(LEAST_BYTES - BATCH_OVERHEAD - rest + extra) for extra in (0, 1))
    outgoing = put_out(emission(1), fits, more, emission(2))
    assert outgoing.too_large == 1
    assert [one.topic for one in outgoing.emissions] == ["routed", "routed", "dead-letter", "routed"]
    assert outgoing.emissions[1] is fits


def test_the_letter_says_what_was_lost_and_keeps_id_key_and_the_beginning() -> None:
    (letter,) = put_out(emission(200_000), limit=100_000).emissions
    told = json.loads(letter.value or b"")
    payload = told.pop("payload")
    assert told.pop("detail").startswith("routed: counting:2:7:0 of 200")
    assert told == {
        "reason": "too_large",
        "root": "te",
        "topic": "te/a/b/c/d/m/t",
        "receipt_time": 900,
        "lost_at": 1_000,
        "truncated": True,
    }
    assert payload == "x" * 65_536
    assert (letter.key, letter.headers) == (b"te", (("id", b"counting:2:7:0"), ("stage", b"counting")))


@pytest.mark.parametrize("value", [b"\x00" * 99_999, b"\xff" * 99_999, "\u00fc".encode() * 50_000])
def test_a_letter_fits_whatever_the_payload_becomes_in_json(value: bytes) -> None:
    (letter,) = put_out(emission(0, value=value)).emissions
    assert record_size(letter) <= LEAST_BYTES - BATCH_OVERHEAD
    told = json.loads(letter.value or b"")
    assert told["truncated"]
    assert told.get("payload") or told["payload_base64"]


def test_where_the_key_is_the_large_part_the_letter_goes_without_it() -> None:
    (letter,) = put_out(emission(5, topic="outbound", key=b"t" * 99_999)).emissions
    assert (letter.key, letter.topic) == (None, "dead-letter")
    assert json.loads(letter.value or b"")["reason"] == "too_large"


def test_an_answer_belongs_to_no_root() -> None:
    (letter,) = put_out(emission(99_999, topic="replies", key=b"correlation")).emissions
    assert json.loads(letter.value or b"")["root"] is None


def test_a_refused_record_leaves_its_payload_as_a_letter() -> None:
    outgoing = put_out()
    outgoing.refuse(RECORD, 99_999)
    (letter,) = outgoing.emissions
    told = json.loads(letter.value or b"")
    assert (told["root"], told["topic"], told["payload"], told["receipt_time"]) == (
        "te",
        "te/a/b/c/d/m/t",
        "payload",
        1_000,
    )
    assert header(letter.headers, "id") == b"counting:2:7:0"
    assert outgoing.too_large == 1


def test_an_overlay_tells_of_a_primary_item_that_is_too_large_and_not_of_a_derived_one() -> None:
    overlay = Bounded(MemoryState(), b"p", 1_000)
    overlay.put(b"d", bytes(5_000))
    overlay.put(b"p1", bytes(900))
    assert overlay.too_large == 0
    overlay.put(b"p2", bytes(5_000))
    overlay.put(b"p2", b"small again")
    assert overlay.too_large == 5_002

"""A dead letter always finds room, whatever the record has: else one bad record would hold up all others for ever."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from headrace_schemas import validator
from headrace_spark.lanes import parked
from headrace_spark.sending import Packed
from headrace_spark.transforms.dead_letters import MAX_DETAIL, MAX_LETTER, MAX_PAYLOAD, DeadLetter, letter, of_report
from headrace_spark.transforms.records import Record, report
from headrace_spark.transforms.rows import Request, Row
from tests.unit.spark.fakes import record

TRACE = ("traceparent", b"00-1")


def shown(found: DeadLetter) -> dict[str, Any]:
    """The document, after what must hold of every letter."""
    document: dict[str, Any] = json.loads(found.value)
    assert list(validator("dead-letter").iter_errors(document)) == []
    size = len(found.key or b"") + len(found.value) + sum(len(name) + len(value) for name, value in found.headers)
    assert size <= MAX_LETTER
    assert len(document["detail"]) <= MAX_DETAIL + 100
    return document


def with_key(key: bytes, value: bytes = b"x" * MAX_PAYLOAD, headers: Any = ()) -> Record:
    return msgspec.structs.replace(record(0, value, [TRACE, *headers]), key=key)


@pytest.mark.parametrize("text", ["a", '"', "\\", "é", "中", "\U0001f300"])
def test_a_text_is_whole_and_a_text_up_to_512_kib(text: str) -> None:
    value = (text * MAX_PAYLOAD).encode()[: MAX_PAYLOAD // 4 * 3]
    value = value.decode(errors="ignore").encode()
    found = shown(letter(record(0, value), "w", "not_json", ""))
    if text in '"\\':  # each takes two bytes, so all of them more than Base64
        assert base64.b64decode(found["payload_base64"]) == value
    else:
        assert found["payload"].encode() == value
    assert "truncated" not in found


def test_a_text_of_escapes_is_whole_in_base64() -> None:
    found = shown(letter(record(0, b"\x01" * MAX_PAYLOAD), "w", "not_json", ""))
    assert base64.b64decode(found["payload_base64"]) == b"\x01" * MAX_PAYLOAD
    assert "truncated" not in found
    few = shown(letter(record(0, b"\x01\x02"), "w", "not_json", ""))
    assert few["payload"] == "\x01\x02"


def test_a_name_as_long_as_the_record_is_cut_in_the_detail() -> None:
    name = b"\\u0001" * 100_000
    for value in (b'{"' + name + b'": 1}', b'{"' + name + b'": 1, "' + name + b'": 1}'):
        found = report(record(0, value), 8_000_000)
        assert len(found.detail) <= MAX_DETAIL
        [one] = of_report(found, "w")
        assert shown(one)["reason"] == found.reason


def test_what_a_store_says_at_length_is_cut() -> None:
    assert shown(letter(record(0, b"{}"), "w", "sink_rejected", "\ud800" * 2_000_000))["detail"] == "\ud800" * 1000


def test_a_large_key_takes_from_the_payload_and_stays() -> None:
    key = b"te/" + b"k" * 300_000
    one = letter(with_key(key), "w", "not_json", "")
    found = shown(one)
    assert (one.key, found["key"], found["root"], found["truncated"]) == (key, key.decode(), "te", True)
    assert len(found["payload"]) == MAX_PAYLOAD // 2
    assert found["headers"] == {"traceparent": "00-1"}
    assert dict(one.headers)["traceparent"] == b"00-1"


@pytest.mark.parametrize("long", [{"key": b"k" * 600_000}, {"headers": [("h", b"\xff" * 400_000)]}])
def test_without_room_for_the_rest_a_letter_goes_without_key_and_headers_and_says_so(long: dict[str, Any]) -> None:
    one = letter(with_key(**{"key": b"te/", **long}), "w", "not_json", "why", 3, 2)
    found = shown(one)
    assert (one.key, found["key"], found["headers"]) == (None, None, {})
    assert found["detail"] == "why (without the record's key and headers, which are too large)"
    assert found["payload"] == "x" * MAX_PAYLOAD, "then there is room for all of it"
    assert (found["element"], found["attempts"], found["offset"]) == (3, 2, 0)
    assert one.headers == [("id", b"w:0:0:3"), ("stage", b"spark.w")]


def test_a_parked_request_is_cut_like_any_other() -> None:
    rows = [Row("te/device/a//", "m" * 2000, time, 9, "0" * 32, 1.0, False) for time in range(1000)]
    found = shown(parked(Packed("t", 1, 7, Request("t-1:7:9:0", rows, 1)), "no", 1, "w"))
    assert (found["truncated"], len(found["payload"])) == (True, MAX_PAYLOAD)

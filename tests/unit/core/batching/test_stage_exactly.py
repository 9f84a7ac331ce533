"""Every field and header that the stage reads or writes, to the letter, over chunks of one record and over larger ones.

What mutants of config, event_time, keys, payload and stage still survive changes nothing that can be seen: letters and
widths of keys and numbers in the state, the spelling of `replace`, another number below every offset, another bound
beyond which a time is out of range anyway, a context whose digits suffice, a time or payload read the long way because
the short one was missed, a looser bound before closer looking, sums of counts that are cleared each time.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.event_time import encoded_event_ms, event_ms
from headrace_core.batching.stage import CUT_BYTES, BatchingStage
from headrace_core.errors import ConfigError
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState, Overlay

ENTITY = b"te/device/main//"


def data(offset: int, value: bytes | None, at: int = 100, **fields: bytes) -> Record:
    given = {"kind": b"data", "entity": ENTITY, "channel": b"m/t"} | fields
    return Record(3, offset, at, b"te", value, tuple(given.items()))


def applied(*records: Record, chunk: int = 1, **config: Any) -> tuple[dict[str, int], list[Emission]]:
    stage, state, out = BatchingStage(BatchingConfig(timeout=10, **config)), MemoryState(), list[Emission]()
    for at in range(0, len(records), chunk):
        overlay = Overlay(state)
        for record in records[at : at + chunk]:
            stage.apply(overlay, record, out.append)
        state.commit(overlay.mutations)
    return dict(stage.gauges(state)), out


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{", {"payload": "{"}),
        (None, {"payload": ""}),
        (b"\xff", {"payload_base64": base64.b64encode(b"\xff").decode()}),
        (b"x" * CUT_BYTES, {"payload": "x" * CUT_BYTES}),
        (b"x" * (CUT_BYTES + 1), {"payload": "x" * CUT_BYTES, "truncated": True}),
    ],
)
def test_a_dead_letter_says_what_came_and_when(value: bytes | None, expected: dict[str, object]) -> None:
    record = data(7, value, topic=b"te/device/main///m/\xff", receipt_time=b"42")
    _, [letter] = applied(record)
    assert (letter.topic, letter.key, letter.partition) == ("dead-letter", b"te", None)
    assert letter.headers == (("id", b"batching:3:7:0"), ("stage", b"batching"))
    assert json.loads(letter.value or b"") == expected | {
        "reason": "invalid", "detail": "", "root": "te", "topic": "te/device/main///m/\ufffd",
        "receipt_time": 42, "lost_at": 42,
    }  # fmt: skip


@pytest.mark.parametrize(("key", "root"), [(None, None), (b"\xff", "\ufffd")])
def test_a_dead_letter_without_topic_or_readable_root(key: bytes | None, root: str | None) -> None:
    _, [letter] = applied(data(0, b"{")._replace(key=key))
    document = json.loads(letter.value or b"")
    assert (letter.key, document["root"], document["topic"]) == (key, root, None)


@pytest.mark.parametrize("chunk", [1, 10])
def test_outputs_of_one_record_are_numbered_and_counted_by_result(chunk: int) -> None:
    records = [data(0, b"{}", 100, channel=b"m/a"), data(1, b'{"time":0.001}', 101, channel=b"m/b")]
    records += [data(2, b"{", 150), data(3, b'{"time":0.001}', 151, channel=b"m/b")]
    gauges, out = applied(*records, chunk=chunk, window=5)
    assert [(e.topic, e.partition, dict(e.headers)["id"]) for e in out] == [
        ("batches", 3, b"batching:3:2:0"), ("batches", 3, b"batching:3:2:1"), ("dead-letter", None, b"batching:3:2:2"),
    ]  # fmt: skip
    assert out[0].headers == (("id", b"batching:3:2:0"),)
    names = ("in", "accepted", "invalid", "duplicate", "closed.timeout", "members", "opened.new", "history", "clock")
    assert [gauges[name] for name in names] == [4, 2, 1, 1, 2, 2, 2, 2, 151]


@pytest.mark.parametrize("chunk", [1, 10])
@pytest.mark.parametrize(
    ("ids", "repeats"),
    [
        ((b"r:0:5:0", b"r:0:5:1", b"r:0:6:0"), 0),
        ((b"r:0:5:1", b"r:0:5:1", b"r:0:5:0", b"r:0:4:9"), 3),
        ((b"r:0:0:0", b"r:0:0:0"), 1),
        ((b"r:0:5:0", b"r:1:5:0", b"s:0:5:0", b"r:0:5:0"), 1),
        ((b"r:0:9:0", b"r:0:10:0", b"r:0:9:0"), 1),
        ((b"r:0:5:x", b"r:0:5:x", b"r:0:y:0", b"r:0:y:0", b"5:0", b"5:0", b"r:0:0:5:0", b"r:0:0:5:0"), 0),
        ((b"r:0:5:" + b"9" * 18, b"r:0:5:" + b"9" * 18, b"r:0:6:" + b"9" * 19, b"r:0:6:" + b"9" * 19), 1),
        ((b"r:0:" + b"9" * 18 + b":0",) * 2 + (b"r:0:" + b"9" * 19 + b":0",) * 2, 1),
    ],
)
def test_ids_that_do_not_rise_are_repeats_whatever_the_chunk(ids: tuple[bytes, ...], repeats: int, chunk: int) -> None:
    gauges, _ = applied(*(data(at, b"[", id=id_) for at, id_ in enumerate(ids)), chunk=chunk)
    assert (gauges["repeat"], gauges["invalid"]) == (repeats, len(ids) - repeats)


@pytest.mark.parametrize(
    ("fields", "measured"),
    [
        ({"channel": b"m/t"}, True),
        ({"channel": b"m/"}, True),
        ({"channel": b"m/t/meta"}, False),
        ({"channel": b"e/t"}, False),
        ({"channel": b""}, False),
        ({"kind": b"twin"}, False),
    ],
)
def test_data_of_a_measurement_is_batched_and_all_else_moves_the_clock(fields: Any, measured: bool) -> None:
    gauges, _ = applied(data(0, b"{}", 77, **fields))
    assert (gauges["accepted"], gauges["not_measurement"], gauges["clock"]) == (measured, not measured, 77)


@pytest.mark.parametrize(("header", "clock"), [(b"9", 9), (b"x", 77), (b"9" * 18, 10**18 - 1), (b"9" * 19, 77)])
def test_the_header_of_the_receipt_time_goes_before_the_append_time(header: bytes, clock: int) -> None:
    assert applied(data(0, b"{}", 77, receipt_time=header))[0]["clock"] == clock


@pytest.mark.parametrize(("absent", "name"), [("channel", "not_measurement"), ("entity", "invalid")])
@pytest.mark.parametrize("chunk", [1, 10])
def test_records_without_a_header_are_counted_each(absent: str, name: str, chunk: int) -> None:
    records = [data(at, b"{}") for at in range(3)]
    lacking = [r._replace(headers=tuple(item for item in r.headers if item[0] != absent)) for r in records]
    gauges, _ = applied(*lacking, chunk=chunk)
    assert (gauges[name], gauges["in"]) == (3, 3)


def test_before_the_first_record_all_is_nought() -> None:
    assert set(applied()[0].values()) == {0}


def test_of_two_headers_with_one_name_the_first_counts() -> None:
    record = data(0, b"{}", 77)
    assert applied(record._replace(headers=(*record.headers, ("kind", b"tick"))))[0]["accepted"] == 1


def test_what_is_open_is_due_and_wants_ticks_and_a_chunk_given_up_leaves_nothing() -> None:
    stage, state = BatchingStage(BatchingConfig(timeout=10)), MemoryState()
    assert (stage.next_due(state), stage.follows_clock(state)) == (None, False)
    overlay = Overlay(state)
    stage.apply(overlay, data(0, b"{}", 100), lambda _: None)
    stage.forget()
    assert stage._run is None  # else a state at the same place in memory might be taken for the one given up
    state.commit(overlay.mutations)
    assert (stage.next_due(state), stage.follows_clock(state)) == (110, True)


@pytest.mark.parametrize(
    ("time", "ms"),
    [
        (b"0", 0), (b"0.0019", 1), (b"12", 12_000), (b"12.5", 12_500), (b"1700000000.25", 1_700_000_000_250),
        (b"-0.0001", -1), (b"1e3", 1_000_000), (b"true", None), (b'"2"', None), (b"1e17", None),
        (b"999999999999999", 999_999_999_999_999_000), (b"4611686018427387.903", 2**62 - 1),
        (b"4611686018427387.904", None), (b"-4611686018427387.904", -(2**62)), (b"-4611686018427387.905", None),
        (b'"1970-01-01T00:00:01Z"', 1000), (b'"1970-01-01T00:00:01.5Z"', 1500), (b'"1970-01-01T00:00:01.25Z"', 1250),
        (b'"1970-01-01T00:00:01.2579Z"', 1257), (b'"1970-01-01 01:00:01.257+01:00"', 1257),
        (b'"1970-01-01T00:00:01,257Z"', None), (b'"1970-01-01T00:00:01.257"', None), (b'"1970-01-01T00:00:01.Z"', None),
        (b'"1970-01-01T01:59:01.257+01:59"', 1257), (b'"1970-01-01T23:59:01+23:59"', 1000),
        (b'"1970-01-01T01:00:01.257+00:60"', None), (b'"1970-01-01T01:00:01+00:60"', None),
        (b'"1970-01-01T01:39:01+00:99"', None), (b'"1970-01-01T00:00:01+22:99"', None),
        (b'"1970-01-01T00:00:60.257Z"', None), (b'"1970-01-01T00:00:01.25xZ"', None),
    ],
)  # fmt: skip
def test_an_event_time_is_cut_from_its_bytes(time: bytes, ms: int | None) -> None:
    assert encoded_event_ms(time) == ms


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_what_is_no_finite_number_is_no_time(number: bytes) -> None:
    assert event_ms(Decimal(number.decode())) is None


@pytest.mark.parametrize("value", ["5", 1.5, True, None])
def test_a_setting_that_is_no_whole_number_says_so(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout.*must be a whole number from 1 to"):
        BatchingConfig(timeout=value)

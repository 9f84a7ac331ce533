"""Routed records become batches, dead letters and counts; a repeat of the stage before has no effect."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.event_time import event_ms
from headrace_core.batching.stage import BatchingStage
from headrace_core.errors import ConfigError
from headrace_core.stage import Emission, HasAges, Record
from headrace_core.state import MemoryState
from headrace_schemas import validator


class Log:
    """Feeds a stage and keeps what comes out."""

    def __init__(self, **config: Any) -> None:
        self.stage, self.state = BatchingStage(BatchingConfig(**config)), MemoryState()
        self.out: list[Emission] = []
        self.offset = 0

    def feed(self, value: bytes, at: int, *, kind: bytes = b"data", channel: bytes = b"m/t", id_: bytes = b"") -> None:
        headers = [("kind", kind), ("receipt_time", str(at).encode()), ("entity", b"te/device/main//")]
        headers += [("channel", channel), ("topic", b"te/device/main///" + channel)]
        if id_:
            headers.append(("id", id_))
        self.stage.apply(self.state, Record(2, self.offset, 5, b"te", value, tuple(headers)), self.out.append)
        self.offset += 1

    def documents(self, topic: str) -> list[Any]:
        return [json.loads(e.value or b"") for e in self.out if e.topic == topic]

    def sum_holds(self) -> bool:
        g = self.stage.gauges(self.state)
        results = ("not_measurement", "repeat", "accepted", "invalid", "duplicate", "future", "late")
        return g["in"] == sum(g.get(name, 0) for name in results)


def test_a_batch_document_obeys_its_schema_and_passes_values_on_unchanged() -> None:
    log = Log(window=50, timeout=100)
    log.feed(b'{"time": 0.1, "v": 1.50, "big": 123456789012345678901234567890}', 110)
    log.feed(b"", 210, kind=b"tick")
    [batch] = log.documents("batches")
    assert list(validator("batch").iter_errors(batch)) == []
    assert b'"value":{"v":1.50,"big":123456789012345678901234567890}' in (log.out[0].value or b"")
    assert (batch["time"], batch["closed_at"], log.out[0].key, log.out[0].partition) == (
        100,
        210,
        b"te/device/main//",
        2,
    )


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[1]", b"\xff", b'{"time": "yesterday"}', b'{"time": true}', b"[" * 9999]
)
def test_what_cannot_be_read_is_a_dead_letter_and_stops_nobody(value: bytes) -> None:
    log = Log(timeout=100)
    log.feed(value, 110)
    log.feed(b'{"v": 1}', 111)
    log.feed(b"", 400, kind=b"flush")
    [letter] = log.documents("dead-letter")
    assert letter["reason"] == "invalid"
    assert list(validator("dead-letter").iter_errors(letter)) == []
    assert len(log.documents("batches")) == 1
    assert log.sum_holds()


def test_a_repeat_of_the_stage_before_is_counted_and_nothing_else() -> None:
    log = Log(timeout=100)
    log.feed(b"{", 110, id_=b"registration:2:7:0")
    log.feed(b'{"v": 1}', 111, id_=b"registration:2:7:1")
    log.feed(b"{", 112, id_=b"registration:2:7:0")
    log.feed(b'{"v": 1}', 113, id_=b"registration:2:7:1")
    log.feed(b'{"v": 2}', 114, id_=b"registration:2:8:0")
    gauges = log.stage.gauges(log.state)
    assert (gauges["invalid"], gauges["accepted"], gauges["repeat"], gauges["open_batches"]) == (1, 2, 2, 2)
    assert len(log.documents("dead-letter")) == 1
    assert log.sum_holds()


def test_only_measurements_are_batched() -> None:
    log = Log()
    log.feed(b"{}", 1, channel=b"e/t")
    log.feed(b"{}", 2, channel=b"m/t/meta")
    log.feed(b"{}", 3, kind=b"register")
    assert log.stage.gauges(log.state)["not_measurement"] == 3
    assert log.stage.next_due(log.state) is None


@pytest.mark.parametrize(
    ("time", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00.0019+01:00", 1),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2026-02-30T00:00:00Z", None),
        ("2026-01-01T00:00:00", None),
        (1, 1000),
        (10**30, None),
        (None, None),
    ],
)
def test_event_time_is_text_with_offset_or_unix_seconds(time: object, ms: int | None) -> None:
    assert event_ms(time) == ms


@pytest.mark.parametrize("field", ["window", "timeout", "max_members", "max_batch_bytes", "dedup_horizon"])
def test_a_bad_setting_is_named(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        BatchingConfig(**{field: -1})


@pytest.mark.parametrize("time", [b"1e99999999999999999999", b"-1e99999999999999999999", b"9" * 5000])
def test_a_number_beyond_all_measure_is_a_dead_letter_and_not_a_crash(time: bytes) -> None:
    log = Log()
    log.feed(b'{"time":' + time + b"}", 110)
    assert [letter["reason"] for letter in log.documents("dead-letter")] == ["invalid"]
    assert log.sum_holds()


@pytest.mark.parametrize("value", [b'{"v":"\xff"}', b'{"v":{"\xff":1}}'])
def test_bytes_that_are_no_text_never_reach_a_batch(value: bytes) -> None:
    log = Log(timeout=100)
    log.feed(value, 110)
    log.feed(b'{"v": 1}', 111)
    log.feed(b"", 400, kind=b"tick")
    assert [len(batch["members"]) for batch in log.documents("batches")] == [1]
    assert len(log.documents("dead-letter")) == 1


def test_a_repeated_flush_does_not_close_what_was_opened_after_the_first() -> None:
    log = Log(timeout=100)
    log.feed(b"", 5, kind=b"flush", id_=b"registration:2:1:0")
    log.feed(b'{"v": 1}', 6, id_=b"registration:2:2:0")
    log.feed(b"", 5, kind=b"flush", id_=b"registration:2:1:0")
    log.feed(b'{"v": 1}', 6, id_=b"registration:2:2:0")
    assert log.documents("batches") == []
    log.feed(b"", 200, kind=b"tick")
    assert [(batch["closed_at"], batch["close"]) for batch in log.documents("batches")] == [(106, "timeout")]


def test_the_gauges_name_the_cause_of_each_batch_and_the_size_of_the_history() -> None:
    log = Log(window=50, timeout=100, max_members=2, dedup_horizon=10)
    for type_, at in ((b"a", 100), (b"a", 110), (b"b", 111), (b"c", 112), (b"d", 300)):
        log.feed(b"{}", at, channel=b"m/" + type_)
    gauges = log.stage.gauges(log.state)
    assert (gauges["opened.new"], gauges["opened.conflict"], gauges["opened.full"]) == (2, 1, 1)
    assert (gauges["closed.timeout"], gauges["open_batches"], gauges["open_members"]) == (3, 1, 1)
    assert (gauges["history"], gauges["late"]) == (0, 0)
    log.feed(b"", 301, kind=b"flush")
    assert log.stage.gauges(log.state)["history"] == 1


def test_fractions_are_cut_and_never_rounded_however_many_digits_there_are() -> None:
    assert event_ms(Decimal("1." + "9" * 40)) == 1999
    assert event_ms(Decimal("1700000000.0019999")) == 1700000000001


@pytest.mark.parametrize("field", ["window", "timeout", "max_members", "max_batch_bytes", "dedup_horizon"])
def test_a_setting_that_no_key_could_hold_stops_the_start(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        BatchingConfig(**{field: 10**30})


def test_raised_receipt_times_messages_ahead_of_the_clock_and_ticks_are_counted() -> None:
    log = Log(timeout=100)
    log.feed(b'{"time": 0.2}', 110, channel=b"m/a")
    log.feed(b'{"time": 0.1}', 90, channel=b"m/b")
    log.feed(b'{"time": 0.11}', 110, channel=b"m/c")
    log.feed(b"", 120, kind=b"tick")
    log.feed(b"", 80, kind=b"tick")
    gauges = log.stage.gauges(log.state)
    assert {name: gauges[name] for name in ("raised", "ahead", "ticks")} == {"raised": 2, "ahead": 1, "ticks": 2}
    assert log.sum_holds()


def test_the_age_of_the_oldest_open_batch_is_told_on_the_clock_of_the_log() -> None:
    log = Log(window=50, timeout=100)
    assert log.stage.ages(log.state) == {"oldest_open": 0}
    log.feed(b'{"time": 0.1}', 110)
    log.feed(b'{"time": 5}', 140)
    assert log.stage.ages(log.state) == {"oldest_open": 30}
    log.feed(b"", 210, kind=b"tick")
    assert log.stage.ages(log.state) == {"oldest_open": 70}
    log.feed(b"", 240, kind=b"tick")
    assert log.stage.ages(log.state) == {"oldest_open": 0}
    assert isinstance(log.stage, HasAges)

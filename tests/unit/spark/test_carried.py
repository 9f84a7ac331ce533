"""Headers of Kafka records on their way to the sink and to the dead letters (spark-writer.md 2, `includeHeaders`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace_core.errors import ConfigError
from headrace_spark.lane_stream import LaneWork, Memory, step
from headrace_spark.lanes import pack, parked
from headrace_spark.settings import check
from headrace_spark.sinks.bulk import body
from headrace_spark.sinks.callables import Context, Result, WriteResult
from headrace_spark.sinks.called import CalledSink
from headrace_spark.transforms.records import Headers, Record, Report, report
from headrace_spark.transforms.rows import Row
from tests.unit.spark.fakes import document, job, member, record
from tests.unit.spark.keyed_bench import Bench, back

ONE, TWO = f"{1:032x}", f"{2:032x}"
TRACE: Headers = [("id", b"batching:0:7:0"), ("traceparent", b"00-1-2-01"), ("other", b"x")]
_TOLD: list[tuple[list[str], Context]] = []
_ANSWERS: list[WriteResult] = []


def deliver(rows: Sequence[Row], context: Context) -> WriteResult:
    _TOLD.append(([row.batch for row in rows], context))
    return _ANSWERS.pop(0) if _ANSWERS else WriteResult()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    _TOLD.clear()
    _ANSWERS.clear()
    return Bench(tmp_path, CalledSink(f"call:{__name__}:deliver"))


def two() -> list[Record]:
    """A record with headers and one without."""
    return [record(0, document(1, [member(1, 1.0)]), TRACE), record(1, document(2, [member(2, 2.0)]))]


def test_a_function_finds_the_headers_of_traces_and_ids_by_document(bench: Bench) -> None:
    bench.write(0, two(), sink="call:json:dumps")
    [(batches, context)] = _TOLD
    assert batches == [ONE, TWO]
    assert context.headers == {ONE: {"id": "batching:0:7:0", "traceparent": "00-1-2-01"}}


def test_the_job_file_names_others_or_none(bench: Bench) -> None:
    bench.write(0, two(), sink="call:json:dumps", headers=["other"])
    bench.write(1, [record(5, document(3, [member(3, 1.0)]), TRACE)], sink="call:json:dumps", headers=[])
    assert [context.headers for _, context in _TOLD] == [{ONE: {"other": "x"}}, {}]


def test_headers_come_back_with_a_record_from_the_retry_topic(bench: Bench) -> None:
    _ANSWERS.append(WriteResult({0: Result("retry", "later")}))
    bench.write(0, two(), sink="call:json:dumps", max_attempts=1)
    bench.write(1, back(bench.take_retries()), sink="call:json:dumps")
    assert _TOLD[1][0] == [ONE]
    assert _TOLD[1][1].headers == _TOLD[0][1].headers


def test_a_dead_letter_goes_on_with_the_trace_and_has_its_own_id(bench: Bench) -> None:
    _ANSWERS.append(WriteResult({0: Result("reject", "no")}))
    bench.write(0, two(), sink="call:json:dumps")
    [letter] = bench.outbox.letters
    assert list(letter.headers) == [("id", b"w:0:0:0"), ("stage", b"spark.w"), ("traceparent", b"00-1-2-01")]
    assert json.loads(letter.value or b"")["headers"] == {name: (value or b"").decode() for name, value in TRACE}


def test_a_bulk_item_has_carried_headers_as_one_member_more() -> None:
    rows = [Row("te", "m", 1, 1, batch, 1.0, False) for batch in (ONE, TWO)]
    plain = body(rows).splitlines()
    first, second = body(rows, headers={ONE: {"traceparent": "00"}}).splitlines()[1::2]
    assert json.loads(first) == {**json.loads(plain[1]), "headers": {"traceparent": "00"}}
    assert second == plain[3]
    assert job(sink="http://h/_bulk").carried == job(headers=None).carried == ()


def lanes() -> list[Report]:
    return [report(one, 100_000, carried=("traceparent",)) for one in two()]


def test_lanes_carry_them_and_a_parked_request_has_what_is_common() -> None:
    found = lanes()
    (whole,) = pack(found, found, job(mode="lanes", sink="call:json:dumps", max=5))
    assert whole.request.headers == {ONE: {"traceparent": "00-1-2-01"}}
    assert json.loads(parked(whole, "no", 1, "w").value)["headers"] == {}
    (alone,) = pack(found[:1], found[:1], job(mode="lanes", sink="call:json:dumps", max=5))
    letter = parked(alone, "no", 1, "w")
    assert json.loads(letter.value)["headers"] == {"traceparent": "00-1-2-01"}
    assert ("traceparent", b"00-1-2-01") in letter.headers


def test_in_stream_mode_they_wait_with_their_rows() -> None:
    work = LaneWork("w", "sqlite:///x", 10, 1_000, 1_000, 1_000)
    first = step(work, ("t", 0), Memory(), lanes(), set(), 5)
    assert first.step.packets == []
    then = step(work, ("t", 0), first.memory, [], set(), 1_100)
    last = step(work, ("t", 0), then.memory, [], set(), 5_000)
    [packet] = [*then.step.packets, *last.step.packets]
    assert ([row.batch for row in packet.rows], packet.headers) == ([ONE, TWO], {ONE: {"traceparent": "00-1-2-01"}})


def test_what_is_no_text_is_escaped_and_of_equals_the_last_counts() -> None:
    found = report(
        record(0, document(1, [member(1, 1.0)]), [("a", b"1"), ("a", b"\xff"), ("b", None)]), 9_999, None, "", "ab"
    )
    assert found.headers == {"a": "\\xff", "b": ""}


def test_tables_take_no_headers() -> None:
    with pytest.raises(ConfigError, match="headers"):
        check(job(headers=["id"]))

"""Mode `lanes`: one request after the other, in order of time, each once, whatever dies or refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_schemas import validator
from headrace_spark.checks import check
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.exits import CorruptInput, Rejection
from headrace_spark.lanes import LaneSender, LaneWriter, pack
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import OutboxDown
from headrace_spark.patience import Patience
from headrace_spark.sending import Carrier
from headrace_spark.settings import Settings
from headrace_spark.sinks.callables import BadAnswer, CallableSink, Context, Result, WriteResult
from headrace_spark.sinks.port import Batch, SinkDown
from headrace_spark.transforms.records import Record, Report, report
from headrace_spark.transforms.rows import Row
from tests.support.packing import Row as PackedRow
from tests.support.packing import broken_invariants
from tests.unit.spark.fakes import AtOnce, Killed, Outbox, Unheard, document, job, member

_BATCH = Batch("q", 0)
Answer = Callable[[Sequence[Row], Context], Any]
DESTINATION: list[Answer] = []


def deliver(rows: Sequence[Row], context: Context) -> Any:
    """The sink of these tests: whatever stands last in DESTINATION answers."""
    return DESTINATION[-1](rows, context)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(Database(f"sqlite://{folder}/state.db"), "w")
        self.ledger.prepare()
        self.outbox, self.pacer = Outbox(), AtOnce()
        self.slept: list[float] = []
        self.calls: list[tuple[str, int, list[Row]]] = []
        self.answers: dict[tuple[str, int], Any] = {}
        DESTINATION.append(self.answer)

    def answer(self, rows: Sequence[Row], context: Context) -> Any:
        self.calls.append((context.request_id, context.attempt, list(rows)))
        found = self.answers.get((context.request_id, context.attempt))
        if isinstance(found, BaseException):
            del self.answers[context.request_id, context.attempt]
            raise found
        return found

    def lane(self, partition: int) -> dict[str, float]:
        """Its metrics."""
        return {
            sample.name.removeprefix("headrace_spark_lane_").removesuffix("_total"): sample.value
            for family in self.numbers.collect()
            for sample in family.samples
            if sample.labels == {"topic": "t", "partition": str(partition)}
        }

    def write(self, found: Sequence[Report], batch: Batch = _BATCH, **changes: object) -> Counts:
        settings = lanes(**changes)
        sink = CallableSink(settings.sink)
        patience = Patience(settings.sink_down_max_ms, sleep=self.slept.append)
        sender = LaneSender(settings, self.ledger, sink, self.outbox, self.pacer, patience)
        writer = LaneWriter(settings, self.ledger, self.outbox, Carrier(sender, self.ledger, patience), patience)
        self.numbers = writer.numbers
        return Counts() if writer.done(batch) else writer.write(batch, found)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def lanes(**changes: object) -> Settings:
    plain: dict[str, object] = {
        "mode": "lanes",
        "sink": "call:tests.unit.spark.test_lanes:deliver",
        "max": 4,
        "lane_mode": "backlog",
    }
    return job(**{**plain, **changes})


def found(partitions: int = 2) -> list[Report]:
    """Documents whose times go back and forth, over some lanes, with a bad one and a repeat."""
    values = [
        document(n, [member(t, {"a": n, "b": t}) for t in range(10 - n, 16 - n)], source=f"te/device/{n % 3}//")
        for n in range(6)
    ]
    values += [b"{", values[0]]
    return [
        report(Record("t", offset % partitions, offset, offset, None, value, []), 100_000)
        for offset, value in enumerate(values)
    ]


def test_a_wrong_schema_does_not_drain_a_topic(bench: Bench) -> None:
    values = [b"{}"] * 51 + [document(n, [member(n, {"a": 1})]) for n in range(49)]
    mixed = [report(Record("t", 0, n, n, None, value, []), 100_000) for n, value in enumerate(values)]
    with pytest.raises(CorruptInput):
        bench.write(mixed)
    assert (bench.outbox.letters, bench.calls) == ([], [])
    assert not bench.ledger.done(_BATCH)
    assert bench.write(mixed[1:]).rejected == 50  # 99 rows are too few to judge by


def test_each_lane_gets_all_its_rows_once_in_order_of_time_and_by_the_rules_of_packing(bench: Bench) -> None:
    counts = bench.write(found())
    assert (counts.rows, counts.inserted, counts.documents_repeated, counts.rejected) == (72, 72, 1, 1)
    assert counts.requests == len(bench.calls) == len({name for name, _, _ in bench.calls})
    for lane, parity in (("t-0:0:6", 0), ("t-1:1:7", 1)):
        calls = [(name, rows) for name, _, rows in bench.calls if name.startswith(lane)]
        assert [name for name, _ in calls] == [f"{lane}:{index}" for index in range(len(calls))]
        sent = [[PackedRow(f"{row.source}${row.metric}", row.time_ms, row.batch) for row in rows] for _, rows in calls]
        rows = [
            PackedRow(f"te/device/{n % 3}//$env.{leaf}", t, f"{n:032x}")
            for n in range(parity, 6, 2) for t in range(10 - n, 16 - n) for leaf in "ab"
        ]  # fmt: skip
        assert broken_invariants(rows, sent, 4) == []
        told = bench.lane(0 if lane.startswith("t-0") else 1)
        assert (told["requests"], told["rows"], told["late"], told["untimed"]) == (len(sent), 36, 0, 0)
        assert told["fill_ratio"] == 36 / (4 * len(sent))
    assert counts == bench.ledger.totals()


def test_the_requests_do_not_depend_on_the_order_of_the_reports() -> None:
    reports = found(3)
    assert pack(reports, reports[:6], lanes()) == pack(
        reports[::-1], sorted(reports[:6], key=lambda one: one.place), lanes()
    )


@pytest.mark.parametrize("after", [0, 1, 5])
def test_after_a_kill_it_goes_on_where_it_ended_and_only_the_unknown_one_goes_twice(bench: Bench, after: int) -> None:
    clean = [one.request.id for one in pack(found(), found()[:6], lanes())]
    bench.answers[clean[after], 1] = Killed()
    with pytest.raises(Killed):
        bench.write(found())
    bench.write(found())
    assert [name for name, _, _ in bench.calls] == [*clean[: after + 1], *clean[after:]]
    assert sum(bench.lane(lane)["skipped"] for lane in range(2)) == after
    assert bench.ledger.sent(_BATCH) == {}, "the record goes away with the commit"
    bench.calls.clear()
    bench.write(found())
    assert bench.calls == []


def test_the_same_request_again_and_never_the_next_one_before_it(bench: Bench) -> None:
    first, second = [one.request.id for one in pack(found(), found()[:6], lanes())][:2]
    bench.answers[first, 1] = Result("retry", "429", retry_after_ms=7_000)
    bench.answers[first, 2] = ConnectionError("reset")
    counts = bench.write(found())
    assert [call[:2] for call in bench.calls[:4]] == [(first, 1), (first, 2), (first, 3), (second, 1)]
    assert bench.slept == [7.0, 1.0]
    assert bench.pacer.pauses == [(7_000, "resource")]
    assert counts.retries == 2
    assert (bench.lane(0)["retries"], bench.lane(1)["retries"]) == (2, 0)
    assert len(bench.pacer.costs) == counts.requests + 2, "every attempt is charged"


def test_a_function_is_told_all_it_may_need(bench: Bench) -> None:
    told: list[Context] = []

    def answer(_rows: Sequence[Row], context: Context) -> Result | None:
        told.append(context)
        return Result("retry") if len(told) == 1 else None

    DESTINATION.append(answer)
    bench.write(found(), Batch("q", 7), max_send_ms=600_000)
    requests = pack(found(), found()[:6], lanes())
    assert {(one.query_id, one.batch_id) for one in told} == {("q", 7)}
    expected = [(one.partition, one.request.id) for one in requests]
    assert [(one.partition, one.request_id) for one in told] == [expected[0], *expected]
    assert [one.attempt for one in told] == [1, 2, *[1] * (len(told) - 2)]
    assert [one.deadline_ns for one in told[:2]] == [number + 600 * 10**9 for number in (1, 2)]
    assert not told[0].cancelled.is_set()


@pytest.mark.parametrize("answer", [Result("Retry"), Result(charge=-1), Result(charge=True), WriteResult(), "done", 1])  # type: ignore[arg-type]
def test_what_a_function_must_not_return_ends_the_job_and_is_not_taken_for_done(bench: Bench, answer: Any) -> None:
    first = pack(found(), found()[:6], lanes())[0].request.id
    bench.answers[first, 1] = answer
    with pytest.raises(BadAnswer, match="the function returned"):
        bench.write(found())
    assert not bench.ledger.done(_BATCH)
    assert bench.ledger.sent(_BATCH) == {}


def test_a_request_that_is_never_taken_fails_the_micro_batch(bench: Bench) -> None:
    first = pack(found(), found()[:6], lanes())[0].request.id
    bench.answers = {(first, attempt): Result("retry", "503") for attempt in range(1, 50)}
    with pytest.raises(SinkDown, match="503"):
        bench.write(found(), max_send_ms=1)
    assert not bench.ledger.done(_BATCH)
    bench.answers = {}
    assert bench.write(found()).inserted == 72


def test_refused_content_is_parked_and_the_lane_goes_on(bench: Bench) -> None:
    second = pack(found(), found()[:6], lanes())[1].request
    bench.answers[second.id, 1] = Result("reject", "bad unit")
    counts = bench.write(found())
    assert (counts.rows, counts.inserted, counts.rows_refused) == (72, 68, 4)
    assert counts.dead_letters == {"sink_rejected": 1, "not_json": 1}
    assert bench.lane(0)["rejected"] == 1
    [letter] = [one for one in bench.outbox.letters if one.reason == "sink_rejected"]
    told = json.loads(letter.value)
    assert list(validator("dead-letter").iter_errors(told)) == []
    assert (told["detail"], len(json.loads(told["payload"]))) == ("bad unit", 4)
    assert dict(letter.headers)["id"] == f"w:{second.id}".encode()


@pytest.mark.parametrize("refused", [False, True])
def test_without_the_acknowledgement_of_its_dead_letters_a_micro_batch_is_not_committed(
    bench: Bench, refused: bool
) -> None:
    """Of a record, and of a request that the destination refused."""
    reports = [one for one in found() if one.taken is not None or not refused]
    if refused:
        bench.answers[pack(reports, reports[:6], lanes())[0].request.id, 1] = Result("reject", "bad unit")
    kept, bench.outbox = bench.outbox, Unheard()  # type: ignore[assignment]
    with pytest.raises(OutboxDown):
        bench.write(reports)
    assert not bench.ledger.done(_BATCH)
    bench.outbox = kept
    assert sum(bench.write(reports).dead_letters.values()) == len(kept.letters) == 1


def test_refused_content_can_stop_the_job(bench: Bench) -> None:
    first = pack(found(), found()[:6], lanes())[0].request
    bench.answers[first.id, 1] = Result("reject", "bad unit")
    with pytest.raises(Rejection, match="bad unit"):
        bench.write(found(), on_reject="stop")
    assert not bench.ledger.done(_BATCH)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sink": "sqlite:////s.db"}, "sink"),
        ({"sink": "call:module"}, "sink"),
        ({"sink": "http:///bulk"}, "sink"),
        ({"sink": "delta:/table"}, "sink"),
        ({"master": "yarn", "lease_store": "postgresql://a/b"}, "state_dsn"),
        ({"master": "yarn", "state_dsn": "postgresql://a/b"}, "master"),
        ({"max_concurrent_batches": 0}, "max_concurrent_batches"),
        ({"max_wait_ms": 0}, "max_wait_ms"),
        ({"path": "staged"}, "path"),
        ({"max": 1001}, "cost"),
        ({"cost": "per_kib(200)"}, "cost"),
        ({"cost": "per_row(1) + call(builtins:len)"}, "cost"),
        ({"cost": "column(1)"}, "cost"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(changes: dict[str, object], field: str) -> None:
    check(lanes(max=1000))
    check(lanes(sink="https://host/bulk"))
    check(lanes(master="yarn", state_dsn="postgresql://a/b", lease_store="postgresql://a/b"))
    with pytest.raises(ConfigError, match=f"^{field}: "):
        check(lanes(**changes))


def test_a_function_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^sink: "):
        CallableSink("call:tests.unit.spark.test_lanes:nobody")

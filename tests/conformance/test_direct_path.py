"""The direct path against a real PostgreSQL, without Spark: tasks upsert, the driver commits, and whatever dies has one
effect, one cost and one number."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import psycopg
import pytest

from headrace_schemas import validator
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.sinks.postgres import OutcomesLost, PostgresSink
from headrace_spark.tables import TableWriter
from headrace_spark.transforms.records import Place, Record, report
from headrace_spark.transforms.rows import Request, Row, request_id
from headrace_spark.upserts import Upserted, Upserter
from tests.support import postgres
from tests.unit.spark.fakes import AtOnce, Killed, Outbox, Watched, document, job, member, record

_BATCH = Batch("q", 0)
_NO_HUGE = "ALTER TABLE measurements ADD CONSTRAINT no_huge CHECK (value < 100)"
_numbers = itertools.count()


class Bench:
    """An empty database with all tables. `at_once`: how many records a task gets at a time."""

    def __init__(self, url: str, **changes: object) -> None:
        self.url = url
        self.settings: Settings = job(sink=url, state_dsn=url, **changes)
        self.ledger = Ledger(Database(url), "w")
        self.ledger.prepare()
        self.sink = Watched(PostgresSink(url))
        self.sink.prepare()
        self.outbox, self.pacer = Outbox(), AtOnce()
        self.slept: list[float] = []
        self.tasks = self.at_once = 2

    def tasks_of(self, records: Sequence[Record], batch: Batch) -> list[Upserted]:
        """A stage of tasks, one after the other: each has some of the partitions, whole."""
        found = []
        for number in range(self.tasks):
            own = [report(one, 1_000_000) for one in records if one.partition % self.tasks == number]
            task = Upserter(self.settings, batch, self.ledger, self.sink, self.pacer, self.patience())
            for at in range(0, len(own), self.at_once):
                task.add(own[at : at + self.at_once])
            found.append(msgspec.msgpack.decode(msgspec.msgpack.encode(task.finish()), type=Upserted))
        return found

    def patience(self) -> Patience:
        return Patience(3_000, sleep=self.slept.append)

    def writer(self) -> TableWriter:
        return TableWriter(self.settings, self.ledger, self.outbox, self.sink, self.patience())

    def write(self, records: Sequence[Record], batch: Batch = _BATCH) -> Counts:
        """As the query does, also for a micro-batch that comes again."""
        writer = self.writer()
        if writer.done(batch):
            return Counts()
        return writer.write(batch, self.tasks_of(records, batch), fetch_from(records))

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as db:
            found = db.execute(text, values)
            return found.fetchall() if found.description else []

    def stored(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT metric, time_ms, value, closed_at, batch FROM measurements ORDER BY 1, 2")

    def nothing_is_left(self) -> bool:
        return self.sql("SELECT 1 FROM hr_request") == []


def fetch_from(records: Sequence[Record]) -> Callable[[Sequence[Place]], list[Record]]:
    return lambda places: [one for one in records if (one.topic, one.partition, one.offset) in set(places)]


@pytest.fixture
def make(server: str) -> Callable[..., Bench]:
    def bench(**changes: object) -> Bench:
        name = f"d{next(_numbers)}"
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        return Bench(server.rpartition("/")[0] + f"/{name}", **changes)

    return bench


def mixed() -> list[Record]:
    """14 rows, and 7 again, in 9 requests. Partition 0: a document with a bad member, what cannot be read, one that
    replaces, the first again. Partition 1: that one again, and another. Partition 2: the latter again."""
    whole = document(1, [member(1, {"a": 1, "b": True, "unit": "C"}), member(2, None), member(3, 3.5)])
    later = document(2, [member(1, {"a": 7}), *[member(t, t) for t in range(10, 16)]], closed_at=60)
    other = document(3, [member(t, t) for t in range(20, 24)])
    placed = [(0, whole), (0, b"not json"), (0, later), (0, whole), (1, whole), (1, other), (2, other)]
    return [at(partition, offset, value) for offset, (partition, value) in enumerate(placed)]


def at(partition: int, offset: int, value: bytes) -> Record:
    return msgspec.structs.replace(record(offset, value), partition=partition)


def huge(*times: int) -> list[Record]:
    """20 rows in two documents, of which those at `times` are too large for the constraint."""
    both = [[member(t, {"a": 1000.0 if t in times else t}) for t in range(low, low + 10)] for low in (0, 10)]
    return [record(number, document(number + 1, members)) for number, members in enumerate(both)]


def check(counts: Counts) -> None:
    assert counts.rows == counts.inserted + counts.replaced + counts.repeats + counts.rows_refused
    assert counts.members == counts.members_taken + counts.members_rejected


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_every_row_is_written_and_the_numbers_add_up_whatever_the_number_of_tasks(
    make: Callable[..., Bench], tasks: int
) -> None:
    bench = make()
    bench.tasks = tasks
    counts = bench.write(mixed())
    check(counts)
    assert (counts.rows, counts.inserted, counts.replaced, counts.repeats) == (14, 13, 1, 0)
    assert (counts.requests, counts.cost, counts.documents_repeated) == (9, 21, 3)
    assert (counts.retries, counts.charged, counts.dead_letters) == (0, 0, {"null_value": 1, "not_json": 1})
    assert bench.ledger.totals() == counts
    assert bench.sql("SELECT records, rows, cost FROM hr_batch_ledger") == [(7, 14, 21)]
    dispatched = [(1, 1)] * 3 + [(3, 3)] * 6
    assert bench.sql("SELECT cost, rows FROM hr_dispatch ORDER BY 1") == dispatched
    assert (len(bench.stored()), bench.nothing_is_left()) == (13, True)
    assert bench.write(mixed()) == Counts()
    again = bench.write(mixed(), Batch("q", 1))
    assert (again.documents_repeated, again.rows, bench.ledger.totals().inserted) == (6, 0, 13)
    assert bench.sql("SELECT cost, rows FROM hr_dispatch ORDER BY 1") == dispatched, "what was seen costs nothing"


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_the_same_records_give_the_same_requests(make: Callable[..., Bench], tasks: int, at_once: int) -> None:
    clean, bench = make(), make()
    clean.tasks = clean.at_once = 2
    bench.tasks, bench.at_once = tasks, at_once
    for one in (clean, bench):
        one.tasks_of(mixed(), _BATCH)
    assert len(clean.sink.outcomes(_BATCH)) == 9
    assert bench.sink.outcomes(_BATCH).keys() == clean.sink.outcomes(_BATCH).keys()


@pytest.mark.parametrize(
    ("moment", "write"), [*[(moment, n) for moment in ("before", "after") for n in (1, 3, 5, 9)], ("forget", 9)]
)
def test_whatever_dies_it_has_one_effect_one_cost_and_one_number(
    make: Callable[..., Bench], moment: str, write: int
) -> None:
    clean, bench = make(), make()
    expected = clean.write(mixed())
    bench.sink.fail = {(moment, write): Killed()}
    with pytest.raises(Killed):
        bench.write(mixed())
    bench.tasks, bench.at_once = 3, 1
    bench.write(mixed())
    assert bench.ledger.totals() == expected
    assert (bench.stored(), bench.nothing_is_left()) == (clean.stored(), True)
    assert {one.value for one in bench.outbox.letters} == {one.value for one in clean.outbox.letters}
    dispatched = len(bench.sql("SELECT 1 FROM hr_dispatch"))
    assert dispatched == (10 if moment == "before" else 9), "what was written costs nothing again"


def test_rows_that_the_table_refuses_are_dead_letters_and_the_others_are_written(make: Callable[..., Bench]) -> None:
    bench = make(max=20)
    bench.sql(_NO_HUGE)
    counts = bench.write(huge(3, 17))
    check(counts)
    assert (counts.inserted, counts.rows_refused, counts.dead_letters) == (18, 2, {"sink_rejected": 2})
    assert [row[1] for row in bench.stored()] == [t for t in range(20) if t not in (3, 17)]
    letters = [json.loads(one.value) for one in bench.outbox.letters]
    assert [(one["offset"], one["element"], one["attempts"]) for one in letters] == [(0, 3, 1), (1, 7, 1)]
    for one in letters:
        assert list(validator("dead-letter").iter_errors(one)) == []
        assert one["detail"].startswith("env.a: ")
        assert "no_huge" in one["detail"]
    assert bench.sql("SELECT sum(cost) FROM hr_dispatch") == [(counts.cost,)], "every try is paid and told"
    assert counts.retries == len(bench.sql("SELECT 1 FROM hr_dispatch")) - 1
    assert (bench.ledger.totals(), bench.nothing_is_left()) == (counts, True)


def test_an_older_row_takes_the_place_of_a_refused_one(make: Callable[..., Bench]) -> None:
    bench = make(max=20)
    bench.sql(_NO_HUGE)
    versions = [member(1, 5), member(1, 6), member(1, 1000), member(1, 2000), *[member(t, t) for t in range(2, 9)]]
    found = [record(n, document(n + 1, [one], closed_at=50 + n)) for n, one in enumerate(versions)]
    counts = bench.write(found)
    check(counts)
    assert (counts.rows, counts.inserted, counts.rows_refused, counts.repeats) == (11, 8, 2, 1)
    assert [row[2] for row in bench.stored()] == [6, *range(2, 9)]
    assert sorted(json.loads(one.value)["offset"] for one in bench.outbox.letters) == [2, 3]


@pytest.mark.parametrize("write", [2, 5, 8])
def test_a_death_amid_the_search_for_guilty_rows_changes_no_number(make: Callable[..., Bench], write: int) -> None:
    clean, bench = make(max=10), make(max=10)
    for one in (clean, bench):
        one.sql(_NO_HUGE)
    expected = clean.write(huge(0, 5, 19))
    bench.sink.fail = {("before", write): Killed()}
    with pytest.raises(Killed):
        bench.write(huge(0, 5, 19))
    bench.write(huge(0, 5, 19))
    assert (bench.ledger.totals(), bench.stored()) == (expected, clean.stored())
    assert [one.value for one in bench.outbox.letters] == [one.value for one in clean.outbox.letters]
    assert bench.nothing_is_left()


def test_what_only_the_end_of_a_transaction_refuses_is_found_too(make: Callable[..., Bench]) -> None:
    bench = make(max=20)
    bench.sql("CREATE TABLE allowed (value float8 PRIMARY KEY)")
    bench.sql("INSERT INTO allowed SELECT generate_series(0, 19)")
    deferred = "FOREIGN KEY (value) REFERENCES allowed DEFERRABLE INITIALLY DEFERRED"
    bench.sql(f"ALTER TABLE measurements ADD CONSTRAINT known {deferred}")
    counts = bench.write(huge(4))
    assert (counts.inserted, counts.rows_refused) == (19, 1)
    assert (len(bench.stored()), bench.nothing_is_left()) == (19, True)


def test_a_store_that_is_away_for_a_while_loses_nothing_and_for_too_long_fails(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.sink.fail = {("before", 1): SinkDown("away"), ("after", 2): SinkDown("the answer was lost")}
    counts = bench.write(mixed())
    assert (counts.inserted, counts.replaced, bench.slept) == (13, 1, [0.5, 1.0])
    assert len(bench.stored()) == 13
    bench.sink.fail = {("before", n): SinkDown("away") for n in range(20)}
    with pytest.raises(SinkDown):
        bench.write([record(9, document(9, [member(1, 1, "late")]))], Batch("q", 1))
    assert bench.sql("SELECT batch_id FROM hr_batch_ledger") == [(0,)]


def test_a_request_of_two_attempts_at_one_time_is_written_by_one_and_answered_to_both(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    rows = [Row("te/device/a//", f"m{n}", 1, 10, "b", float(n), False) for n in range(50)]
    start = threading.Barrier(4)

    def attempt() -> list[Outcome]:
        sink, found = PostgresSink(bench.url), []
        for turn in range(10):
            own = [Row(one.source, one.metric, turn, one.closed_at, one.batch, one.value, False) for one in rows]
            start.wait(60)
            found.append(sink.write(_BATCH, Request(request_id(own), own, len(own))))
        sink.close()
        return found

    with ThreadPoolExecutor(4) as pool:
        ended = [one.result(120) for one in [pool.submit(attempt) for _ in range(4)]]
    assert ended == [[Outcome(inserted=50)] * 10] * 4
    assert bench.sql("SELECT count(*) FROM hr_request") == [(10,)]


def test_a_crash_of_the_server_before_the_commit_is_seen_and_repeated() -> None:
    """Requests do not wait for the disk; the micro-batch does."""
    with postgres.running(f"{postgres.FAST} -c wal_writer_delay=10s -c full_page_writes=off") as server:
        bench = Bench(server.url)
        written = bench.tasks_of(mixed(), _BATCH)
        server.restart()
        assert len(PostgresSink(server.url).outcomes(_BATCH)) < 9, "nothing was lost, so nothing is tested"
        with pytest.raises(OutcomesLost):
            bench.writer().write(_BATCH, written, fetch_from(mixed()))
        assert bench.sql("SELECT 1 FROM hr_batch_ledger") == []
        assert bench.write(mixed()).inserted == 13
        written = bench.tasks_of([at(0, 9, document(9, [member(9, 9)]))], Batch("q", 1))
        bench.sink.secure(Batch("q", 1), written[0].written)
        server.restart()
        assert len(bench.stored()) == 14

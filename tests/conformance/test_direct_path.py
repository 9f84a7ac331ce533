"""The direct path against a real PostgreSQL, without Spark: tasks upsert, the driver commits, and whatever dies has one
effect, one cost and one number."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from headrace_schemas import validator
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.sending import Carried, Carrier, Queue, shares
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.tables import TableSender, TableWriter
from headrace_spark.transforms.records import Place, Record, report
from headrace_spark.transforms.rows import Request, Row, request_id
from tests.unit.spark.fakes import AtOnce, Killed, Outbox, Watched, document, job, member, record

_BATCH = Batch("q", 0)
_NO_HUGE = "ALTER TABLE measurements ADD CONSTRAINT no_huge CHECK (value < 100)"
_numbers = itertools.count()


class Bench:
    """An empty database with all tables; `carry` is a stage of tasks, one after the other."""

    def __init__(self, url: str, **changes: object) -> None:
        self.url = url
        self.settings: Settings = job(sink=url, state_dsn=url, **changes)
        self.ledger = Ledger(Database(url), "w")
        self.ledger.prepare()
        self.sink = Watched(PostgresSink(url))
        self.sink.prepare()
        self.outbox, self.pacer = Outbox(), AtOnce()
        self.slept: list[float] = []
        self.tasks = 2

    def carry(self, batch: Batch, queues: Sequence[Queue]) -> Carried:
        whole = Carried({}, {})
        for own in shares(queues, self.tasks):
            patience = self.patience()
            sender = TableSender(self.settings, self.ledger, self.sink, self.pacer, patience)
            whole.ends.update(Carrier(sender, self.ledger, patience).carry(batch, own).ends)
        return whole

    def patience(self) -> Patience:
        return Patience(3_000, sleep=self.slept.append)

    def writer(self) -> TableWriter:
        return TableWriter(self.settings, self.ledger, self, self.outbox, self.sink.forget, self.patience())

    def write(self, records: Sequence[Record], batch: Batch = _BATCH) -> Counts:
        """As the query does, also for a micro-batch that comes again."""
        writer = self.writer()
        if writer.done(batch):
            return Counts()
        return writer.write(batch, [report(one, 1_000_000) for one in records], fetch_from(records))

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as db:
            found = db.execute(text, values)
            return found.fetchall() if found.description else []

    def stored(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT metric, time_ms, value, closed_at, batch FROM measurements ORDER BY 1, 2")

    def nothing_is_left(self) -> bool:
        return self.sql("SELECT 1 FROM hr_request") == self.sql("SELECT 1 FROM hr_sent") == []


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
    """9 rows in 3 requests: a document, what cannot be read, one that replaces, one with a bad member, a repeat."""
    whole = document(1, [member(1, {"a": 1, "b": True, "unit": "C"}), member(2, None), member(3, 3.5)])
    later = document(2, [member(1, {"a": 7}), *[member(t, t) for t in range(10, 16)]], closed_at=60)
    return [record(offset, value) for offset, value in enumerate([whole, b"not json", later, whole])]


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
    assert (counts.rows, counts.inserted, counts.repeats, counts.requests, counts.cost) == (10, 9, 1, 3, 9)
    assert (counts.retries, counts.charged, counts.dead_letters) == (0, 0, {"null_value": 1, "not_json": 1})
    assert bench.ledger.totals() == counts
    assert bench.sql("SELECT records, rows, cost FROM hr_batch_ledger") == [(4, 10, 9)]
    assert bench.sql("SELECT cost, rows FROM hr_dispatch") == [(3, 3)] * 3
    assert (len(bench.stored()), bench.nothing_is_left()) == (9, True)
    assert bench.write(mixed()) == Counts()
    again = bench.write(mixed(), Batch("q", 1))
    assert (again.documents_repeated, again.rows, bench.ledger.totals().inserted) == (3, 0, 9)


@pytest.mark.parametrize(
    ("moment", "write"), [*[(moment, n) for moment in ("before", "after") for n in (1, 2, 3)], ("forget", 3)]
)
def test_whatever_dies_it_has_one_effect_one_cost_and_one_number(
    make: Callable[..., Bench], moment: str, write: int
) -> None:
    clean, bench = make(), make()
    expected = clean.write(mixed())
    bench.sink.fail = {(moment, write): Killed()}
    with pytest.raises(Killed):
        bench.write(mixed())
    bench.tasks = 3
    bench.write(list(reversed(mixed())))
    assert bench.ledger.totals() == expected
    assert (bench.stored(), bench.nothing_is_left()) == (clean.stored(), True)
    assert {one.value for one in bench.outbox.letters} == {one.value for one in clean.outbox.letters}
    dispatched = [(3, 3)] * (4 if moment == "before" else 3)
    assert bench.sql("SELECT cost, rows FROM hr_dispatch") == dispatched, "what was written costs nothing again"


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
    assert (counts.inserted, counts.repeats, bench.slept) == (9, 1, [0.5, 1.0])
    assert len(bench.stored()) == 9
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

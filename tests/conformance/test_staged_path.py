"""The staged path against a real PostgreSQL, without Spark: one effect for each micro-batch, whatever dies."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from headrace_schemas import validator
from headrace_spark.backfill import Backfill
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.exits import CorruptInput
from headrace_spark.faults import NO_FAULTS
from headrace_spark.jobs import backfill, paths, watching
from headrace_spark.jobs.paths import Staged
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.settings import Settings
from headrace_spark.sinks import staging
from headrace_spark.sinks.merging import sweep
from headrace_spark.sinks.port import Batch, SinkDown
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.sinks.staging import Connection, Stager, StagingLost, TaskReport, Work
from headrace_spark.staged import StagedWriter
from headrace_spark.transforms.dead_letters import DeadLetter
from headrace_spark.transforms.records import Record, report
from headrace_spark.writing import BatchWriter
from tests.unit.spark.fakes import AtOnce, Outbox, document, job, member, record

_BATCH = Batch("q", 0)
_numbers = itertools.count()


class Bench:
    """An empty database with all tables, records to write, and what went out."""

    def __init__(self, url: str, **changes: object) -> None:
        self.url = url
        self.settings: Settings = job(sink=url, state_dsn=url, path="staged", **changes)
        self.ledger = Ledger(Database(url), "w")
        self.ledger.prepare()
        PostgresSink(url, append=self.settings.append).prepare()
        staging.prepare(url, "measurements")
        self.ledger.remember("q", "checkpoint")
        self.outbox, self.pacer = Outbox(), AtOnce()
        self.slept: list[float] = []
        self.attempts = itertools.count()

    def task(self, part: int, records: Sequence[Record], batch: Batch = _BATCH) -> TaskReport:
        """A task attempt that runs to its end."""
        stager = self.stager(part, batch)
        for one in records:
            stager.add(report(one, 1_000_000))
        return stager.finish()

    def stager(self, part: int = 0, batch: Batch = _BATCH, connection: Connection | None = None) -> Stager:
        settings = self.settings
        work = Work(
            settings.sink, settings.table, batch, "run", settings.chunk_bounds, settings.stage_cost_of,
            settings.dearest, 1_000_000, settings.sink_down_max_ms, NO_FAULTS,
        )  # fmt: skip
        attempt = f"run:{next(self.attempts)}"
        return Stager(work, part, 0, attempt, connection or Connection(self.url), self.pacer, self.slept.append)

    def writer(self, outbox: Any = None) -> StagedWriter:
        patience = Patience(3_000, sleep=self.slept.append)
        return StagedWriter(self.settings, self.ledger, outbox or self.outbox, self.pacer, patience)

    def write(self, records: Sequence[Record], batch: Batch = _BATCH, tasks: int = 2) -> Counts:
        """The whole micro-batch, spread over tasks."""
        done = [self.task(part, records[part::tasks], batch) for part in range(tasks)]
        return self.writer().write(batch, done, fetch_from(records))

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as db:
            found = db.execute(text, values)
            return found.fetchall() if found.description else []

    def stored(self) -> list[tuple[Any, ...]]:
        return self.sql(
            "SELECT source, metric, time_ms, value, boolean, closed_at, batch FROM measurements ORDER BY 1,2,3"
        )

    def staged(self) -> int:
        return int(self.sql("SELECT count(*) FROM hr_stage_measurements")[0][0])


def fetch_from(records: Sequence[Record]) -> Callable[[Sequence[staging.Place]], list[Record]]:
    return lambda places: [one for one in records if (one.topic, one.partition, one.offset) in set(places)]


@pytest.fixture
def make(server: str) -> Callable[..., Bench]:
    def bench(**changes: object) -> Bench:
        name = f"b{next(_numbers)}"
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        return Bench(server.rpartition("/")[0] + f"/{name}", **changes)

    return bench


def mixed(first: int = 0) -> list[Record]:
    """A good document, one with bad members, text, a repeat, and one that replaces a row of the first."""
    whole = document(1, [member(1, {"a": 1, "b": True, "unit": "C"}), member(2, None), member(3, 3.5)])
    values = [
        whole,
        b"not json",
        document(2, [member(1, {"a": 7}), *[member(t, t) for t in range(10, 16)]], closed_at=60),
    ]
    return [record(first + offset, value) for offset, value in enumerate([*values, whole])]


def test_a_micro_batch_has_the_effect_and_the_numbers_of_the_direct_path(make: Callable[..., Bench]) -> None:
    bench, other = make(), make()
    counts = bench.write(mixed())
    sink, outbox = PostgresSink(other.url), Outbox()
    direct = BatchWriter(other.settings, other.ledger, sink, outbox, AtOnce(), Patience(0))
    expected = direct.write(_BATCH, [report(one, 1_000_000) for one in mixed()])
    assert bench.stored() == other.stored()
    same = ("records", "documents", "documents_repeated", "members", "members_taken", "rows", "inserted", "repeats",
            "text_leaves_dropped", "dead_letters")  # fmt: skip
    assert {name: getattr(counts, name) for name in same} == {name: getattr(expected, name) for name in same}
    assert {one.value for one in bench.outbox.letters} == {one.value for one in outbox.letters}
    assert bench.ledger.totals() == counts
    assert bench.staged() == 0


def test_every_chunk_and_every_slice_is_one_operation_that_is_paid_and_recorded(make: Callable[..., Bench]) -> None:
    bench = make(cost="per_row(2)", stage_cost="per_request(5)", max=4)
    counts = bench.write([record(0, document(1, [member(t, t) for t in range(10)]))], tasks=1)
    assert bench.pacer.costs == [5, 5, 5, 8, 8, 4]
    assert (counts.requests, counts.cost) == (6, 35)
    assert bench.sql("SELECT cost, rows FROM hr_dispatch ORDER BY at_ns") == [
        (5, 4), (5, 4), (5, 2), (8, 4), (8, 4), (4, 2),
    ]  # fmt: skip
    assert bench.sql("SELECT records, rows, cost FROM hr_batch_ledger") == [(1, 10, 35)]


def test_the_capacity_goes_back_before_the_commit(make: Callable[..., Bench]) -> None:
    """Told once nothing more goes out, while others still see nothing of the micro-batch."""
    bench, seen = make(), list[int]()
    records = [record(0, document(1, [member(t, t) for t in range(10)]))]
    done = bench.task(0, records)
    patience = Patience(3_000, sleep=bench.slept.append)
    merged = lambda: seen.append(len(bench.sql("SELECT 1 FROM measurements")))  # noqa: E731
    writer = StagedWriter(bench.settings, bench.ledger, bench.outbox, bench.pacer, patience, merged=merged)
    counts = writer.write(_BATCH, [done], fetch_from(records))
    assert seen == [0]
    assert len(bench.sql("SELECT 1 FROM measurements")) == counts.rows > 0


def test_slices_and_chunks_are_halved_until_their_kib_fit(make: Callable[..., Bench]) -> None:
    bench = make(cost="per_kib(10)", stage_cost="per_kib(5)", capacity=30, max=100)
    counts = bench.write([record(0, document(1, [member(t, t, "m" * 1000) for t in range(8)]))], tasks=1)
    assert counts.inserted == 8
    assert max(bench.pacer.costs) <= 30
    assert bench.sql("SELECT sum(cost) FROM hr_dispatch") == [(counts.cost,)]
    assert sorted(bench.sql("SELECT rows, cost FROM hr_dispatch")) == [(2, 30)] * 4 + [(4, 25)] * 2


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_the_number_of_tasks_changes_nothing(make: Callable[..., Bench], tasks: int) -> None:
    bench, one = make(), make()
    assert bench.write(mixed(), tasks=tasks).items() | {"requests": 0, "cost": 0} == one.write(
        mixed(), tasks=1
    ).items() | {
        "requests": 0,
        "cost": 0,
    }
    assert bench.stored() == one.stored()


def test_a_higher_version_replaces_in_one_micro_batch_and_over_several(make: Callable[..., Bench]) -> None:
    bench = make()
    both = [record(0, document(1, [member(1, 1)], closed_at=10)), record(1, document(2, [member(1, 2)], closed_at=11))]
    assert (bench.write(both).inserted, bench.stored()[0][3]) == (1, 2.0)
    older = bench.write([record(2, document(3, [member(1, 3)], closed_at=9))], Batch("q", 1))
    newer = bench.write([record(3, document(4, [member(1, 4)], closed_at=12))], Batch("q", 2))
    assert (older.repeats, newer.replaced, bench.stored()[0][3]) == (1, 1, 4.0)


def test_a_document_of_an_earlier_micro_batch_is_a_repeat(make: Callable[..., Bench]) -> None:
    bench = make()
    first = bench.write(mixed())
    again = bench.write(mixed(10), Batch("q", 1))
    assert (again.documents, again.documents_repeated, again.rows) == (0, 3, 0)
    assert bench.ledger.totals().inserted == first.inserted == len(bench.stored())
    assert bench.staged() == 0


def test_what_a_dead_attempt_staged_is_never_merged_and_goes_away(make: Callable[..., Bench]) -> None:
    bench = make(max=2)
    dead = bench.stager()
    dead.add(report(record(0, document(1, [member(t, 99.0) for t in range(7)])), 1_000_000))
    assert bench.staged() == 6
    good = [record(0, document(1, [member(t, t) for t in range(7)]))]
    assert bench.write(good).inserted == 7
    assert [row[3] for row in bench.stored()] == [float(t) for t in range(7)]
    assert bench.staged() == 0


def test_a_replay_after_the_commit_writes_nothing(make: Callable[..., Bench]) -> None:
    bench = make()
    tasks = [bench.task(0, mixed())]
    counts = bench.writer().write(_BATCH, tasks, fetch_from([]))
    assert bench.writer().done(_BATCH)
    spent = len(bench.pacer.costs)
    assert bench.writer().write(_BATCH, tasks, fetch_from([])) == Counts()
    assert len(bench.pacer.costs) == spent
    assert bench.ledger.totals() == counts


def test_a_staging_table_that_was_emptied_fails_the_micro_batch_and_the_replay_succeeds(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    tasks = [bench.task(0, mixed())]
    bench.sql("TRUNCATE hr_stage_measurements")
    with pytest.raises(StagingLost, match="0 rows are staged, but the tasks reported 13"):
        bench.writer().write(_BATCH, tasks, fetch_from([]))
    assert (bench.stored(), bench.sql("SELECT * FROM hr_batch_ledger")) == ([], [])
    assert bench.write(mixed()).inserted == 9


def test_rows_that_a_constraint_refuses_are_dead_letters_and_the_rest_is_merged(make: Callable[..., Bench]) -> None:
    bench = make(max=1000)
    bench.sql("ALTER TABLE measurements ADD CHECK (value < 100)")
    bench.sql("ALTER TABLE measurements ADD UNIQUE (metric, time_ms) DEFERRABLE INITIALLY DEFERRED")
    values = [
        document(
            1,
            [
                member(1, {"a": 1, "b": 500}),
                member(2, 600, "x"),
                member(3, None),
                *[member(t, t) for t in range(10, 90)],
            ],
        ),
        document(2, [member(1, {"a": 1, "c": 500})], source="te/device/b//"),
    ]
    records = [record(offset, value) for offset, value in enumerate(values)]
    counts = bench.write(records)
    assert (counts.rows, counts.inserted, counts.rows_refused) == (85, 81, 4)
    assert counts.dead_letters == {"null_value": 1, "sink_rejected": 3}
    letters = [json.loads(one.value) for one in bench.outbox.letters]
    assert all(list(validator("dead-letter").iter_errors(one)) == [] for one in letters)
    refused = {(one["offset"], one["element"]): one for one in letters if one["reason"] == "sink_rejected"}
    assert sorted(refused) == [(0, 0), (0, 1), (1, 0)]
    assert "env.b" in refused[0, 0]["detail"]
    assert refused[1, 0]["detail"].count("env.") == 2
    assert refused[0, 1]["payload"] == values[0].decode()
    assert ("env.a", 1.0) in [(row[1], row[3]) for row in bench.stored()]
    assert bench.staged() == 0


def test_where_the_newest_row_of_a_key_is_refused_the_one_before_it_is_there(make: Callable[..., Bench]) -> None:
    """It would be, had they come in two micro-batches; a valid row must not disappear behind one that is refused."""
    bench = make()
    bench.sql("ALTER TABLE measurements ADD CHECK (value < 100)")
    values = [
        document(1, [member(1, 1), member(2, 2)], closed_at=10),
        document(2, [member(1, 2), member(2, 500)], closed_at=11),
        document(3, [member(1, 600)], closed_at=11),
        document(4, [member(1, 700)], closed_at=12),
    ]
    counts = bench.write([record(offset, value) for offset, value in enumerate([*values, values[0]])])
    assert [(row[2], row[3], row[5]) for row in bench.stored()] == [(1, 2.0, 11), (2, 2.0, 10)]
    assert (counts.rows, counts.inserted, counts.rows_refused, counts.repeats) == (6, 2, 3, 1)
    refused = {json.loads(one.value)["offset"] for one in bench.outbox.letters if one.reason == "sink_rejected"}
    assert refused == {1, 2, 3}
    assert bench.sql("SELECT sum(cost) FROM hr_dispatch") == [(counts.cost,)], "every attempt is charged"


def test_two_drivers_with_the_same_micro_batch_have_one_effect(make: Callable[..., Bench]) -> None:
    bench = make()
    tasks = [[bench.task(0, mixed())] for _ in range(2)]
    writers = [bench.writer(), bench.writer()]
    with ThreadPoolExecutor() as threads:
        both = [
            threads.submit(one.write, _BATCH, done, fetch_from([])) for one, done in zip(writers, tasks, strict=True)
        ]
        counts = sorted((one.result() for one in both), key=lambda found: found.records)
    assert [one.records for one in counts] == [0, 4]
    assert bench.ledger.totals() == counts[1]
    assert len(bench.stored()) == 9


class Cutting:
    """An outbox whose first letters cost the writer its connection, inside the transaction."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.times = 0

    def send(self, letters: Sequence[DeadLetter]) -> None:
        self.times += 1
        if self.times == 1:
            cut(self.bench)
        self.bench.outbox.send(letters)


def cut(bench: Bench) -> None:
    """End every other connection, as a restart of the server does."""
    bench.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_a_connection_lost_in_the_transaction_is_tried_again(make: Callable[..., Bench]) -> None:
    bench = make()
    tasks = [bench.task(0, mixed())]
    counts = bench.writer(Cutting(bench)).write(_BATCH, tasks, fetch_from([]))
    assert counts.inserted == len(bench.stored()) == 9
    assert bench.slept == [0.5, 1.0], "the connection of the merge, then the one that records what goes out"
    assert bench.ledger.totals() == counts
    assert bench.sql("SELECT sum(cost) FROM hr_dispatch") == [(counts.cost,)], "every attempt is charged"


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_merge_that_others_are_in_the_way_of_is_tried_again_and_every_try_is_paid(
    make: Callable[..., Bench], code: str
) -> None:
    """A serialization failure, or a deadlock, as the server tells it: of the second slice, two times."""
    bench = make(max=5)
    bench.sql("CREATE SEQUENCE slices")
    bench.sql(f"""CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('slices') IN (2, 4) THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; END IF;
        RETURN NULL; END $$""")
    bench.sql("CREATE TRIGGER fail BEFORE INSERT ON measurements EXECUTE FUNCTION fail()")
    tasks = [bench.task(0, mixed())]
    staged = len(bench.pacer.costs)
    counts = bench.writer().write(_BATCH, tasks, fetch_from([]))
    assert (counts.inserted, len(bench.stored())) == (9, 9)
    assert (bench.slept, counts.retries) == ([0.5, 1.0], 2)
    assert bench.pacer.costs[staged:] == [5, 4] * 3
    assert bench.ledger.totals() == counts
    assert bench.sql("SELECT sum(cost) FROM hr_dispatch") == [(counts.cost,)], "every attempt is charged"


def test_the_transaction_waits_for_capacity_though_the_role_ends_idle_ones(make: Callable[..., Bench]) -> None:
    bench = make(max=5)
    bench.sql(f"ALTER DATABASE {bench.url.rpartition('/')[2]} SET idle_in_transaction_session_timeout = '50ms'")
    tasks = [bench.task(0, mixed())]
    run = bench.pacer.run

    def late(cost: int, work: Callable[[int], Any]) -> Any:
        time.sleep(0.2)
        return run(cost, work)

    bench.pacer.run = late  # type: ignore[method-assign]
    assert bench.writer().write(_BATCH, tasks, fetch_from([])).inserted == 9
    assert bench.slept == []


def test_rows_are_merged_in_the_order_of_their_keys(make: Callable[..., Bench]) -> None:
    """So that two jobs that merge the same keys lock them in the same order."""
    bench = make(max=5)
    bench.sql("CREATE TABLE written (n serial, source text, metric text, time_ms bigint)")
    bench.sql("""CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO written (source, metric, time_ms) VALUES (NEW.source, NEW.metric, NEW.time_ms);
        RETURN NEW; END $$""")
    bench.sql("CREATE TRIGGER note BEFORE INSERT ON measurements FOR EACH ROW EXECUTE FUNCTION note()")
    values = [
        document(n, [member(t, t, kind) for t in (9, 100, 3) for kind in ("b", "Z", "a")], source=f"te/device/{name}//")
        for n, name in enumerate("bCa")
    ]
    bench.write([record(offset, value) for offset, value in enumerate(values)])
    keys = bench.sql("SELECT source, metric, time_ms FROM written ORDER BY n")
    assert (keys, len(keys)) == (sorted(keys), 27)


def test_a_connection_that_was_lost_before_the_sweep_of_a_start_is_opened_again(make: Callable[..., Bench]) -> None:
    """The query starts again in the same process with a new size of micro-batches."""
    bench = make()
    bench.task(0, mixed())
    writer = bench.writer()
    writer.done(Batch("q", 100))
    cut(bench)
    writer.begin("q")
    assert (bench.slept, bench.staged()) == ([0.5], 0)


def test_what_dead_attempts_staged_goes_every_100_micro_batches(make: Callable[..., Bench]) -> None:
    bench = make()
    for batch in (Batch("q", 7), Batch("q", 100)):
        bench.task(0, [record(0, document(1, [member(1, 1)]))], batch)
    assert not bench.writer().done(Batch("q", 99))
    assert bench.staged() == 2
    assert not bench.writer().done(Batch("q", 100))
    assert bench.sql("SELECT batch_id FROM hr_stage_measurements") == [(100,)]


def test_a_chunk_whose_connection_was_lost_is_staged_once(make: Callable[..., Bench]) -> None:
    bench = make(max=2)
    stager = bench.stager()
    stager.add(report(record(0, document(1, [member(t, t) for t in range(5)])), 1_000_000))
    cut(bench)
    done = stager.finish()
    assert (done.rows, done.requests, done.retries, bench.staged()) == (5, 3, 1, 5)
    assert bench.sql("SELECT sum(cost) FROM hr_dispatch") == [(done.cost,)]
    assert bench.writer().write(_BATCH, [done], fetch_from([])).inserted == 5


def test_a_store_that_stays_down_fails_the_task_and_the_driver(make: Callable[..., Bench]) -> None:
    bench = make(sink_down_max_ms=2_000)
    done = bench.task(0, mixed())
    stager = bench.stager(connection=Connection("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2"))
    stager.add(report(mixed()[0], 1_000_000))
    with pytest.raises(SinkDown):
        stager.finish()
    away = job(sink="postgresql://nobody@127.0.0.1:1/none?connect_timeout=2", path="direct")
    writer = StagedWriter(away, bench.ledger, bench.outbox, bench.pacer, Patience(2_000, sleep=bench.slept.append))
    with pytest.raises(SinkDown):
        writer.write(_BATCH, [done], fetch_from([]))


def test_a_wrong_schema_does_not_drain_a_topic(make: Callable[..., Bench]) -> None:
    bench = make()
    bad = [record(offset, b"{}") for offset in range(101)]
    with pytest.raises(CorruptInput):
        bench.write(bad)
    assert bench.outbox.letters == []
    assert bench.sql("SELECT * FROM hr_batch_ledger") == []


def test_a_table_of_another_shape_does_not_drain_a_topic(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.sql("ALTER TABLE measurements ADD CHECK (value < 40)")
    records = [record(n, document(n, [member(n, n)])) for n in range(100)]
    with pytest.raises(CorruptInput, match="refuses 60 of 100 rows"):
        bench.write(records)
    assert (bench.outbox.letters, bench.sql("SELECT count(*) FROM measurements")) == ([], [(0,)])
    bench.sql("ALTER TABLE measurements DROP CONSTRAINT measurements_value_check")
    assert bench.write(records).inserted == 100


def test_sweeping_spares_what_others_still_need(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.sql("INSERT INTO hr_query VALUES ('other', 'p', 'elsewhere')")
    for batch in (Batch("q", 0), Batch("q", 5), Batch("p", 0), Batch("gone", 0)):
        bench.task(0, [record(0, document(1, [member(1, 1)]))], batch)
    with Database(bench.url).transaction() as at:
        assert sweep(at, "measurements", "q", 5) == 2
    assert bench.sql("SELECT query_id, batch_id FROM hr_stage_measurements ORDER BY 1, 2") == [("p", 0), ("q", 5)]
    bench.writer().begin("q")
    assert bench.sql("SELECT query_id FROM hr_stage_measurements") == [("p",)]


def test_a_live_job_that_sweeps_spares_a_backfill_at_work(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = Backfill(
        name="again", alone=True, from_offsets={"headrace.batches-0": 0}, to_offsets={"headrace.batches-0": 4}
    )
    live = make(backfill=chunk)
    one = backfill.Run(backfill.own_settings(live.settings), live.settings.job)

    def stage(_: Any, work: Work, __: Any) -> list[TaskReport]:
        task = live.task(0, mixed(), work.batch)
        live.writer().begin("q")
        live.writer().done(Batch("q", 100))
        return [task]

    monkeypatch.setattr(paths, "stage", stage)
    monkeypatch.setattr(backfill, "batch_frame", lambda *_: None)
    monkeypatch.setattr(one.way._writer, "_outbox", live.outbox)  # type: ignore[attr-defined]
    try:
        one.write(None, [(Batch(one.id, 0), [])])
    finally:
        one.way.stop()
    assert one.ledger.totals().inserted == len(live.stored()) == 9


def test_a_merge_waits_for_another_with_the_same_keys_and_neither_is_lost(make: Callable[..., Bench]) -> None:
    bench, start = make(max=3), threading.Barrier(2)
    done = [
        bench.task(0, [record(n, document(n + 1, [member(t, n) for t in range(30)], closed_at=n))], Batch("q", n))
        for n in range(2)
    ]

    def write(number: int) -> Counts:
        start.wait()
        return bench.writer().write(Batch("q", number), [done[number]], fetch_from([]))

    with ThreadPoolExecutor() as threads:
        found = list(threads.map(write, range(2)))
    assert sum(one.inserted + one.replaced + one.repeats for one in found) == 60
    assert {row[3] for row in bench.stored()} == {1.0}


def test_the_driver_hears_of_tasks_that_stage(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage may last for many triggers where the capacity is shared; it is no query that stands still."""
    monkeypatch.setattr(watching, "LOOK_S", 0.05)
    bench, told = make(max=2), threading.Semaphore(0)
    way = Staged(bench.settings, bench.ledger, bench.outbox, Patience(0), told.release)

    def stage(*_: Any) -> list[TaskReport]:
        assert told.acquire(timeout=60), "the first look"
        assert not told.acquire(timeout=0.3), "nothing is staged"
        task = bench.stager()
        task.add(report(record(0, document(1, [member(t, t) for t in range(5)])), 1_000_000))
        assert told.acquire(timeout=60), "two chunks are"
        return [task.finish()]

    monkeypatch.setattr(paths, "stage", stage)
    try:
        assert way.write(None, _BATCH).inserted == 5
    finally:
        way.stop()


def test_rows_that_wait_for_their_merge_are_a_gauge(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, seen = make(), list[dict[str, float]]()

    class Looking(Outbox):
        """Called inside the transaction."""

        def send(self, letters: Sequence[DeadLetter]) -> None:  # noqa: ARG002
            seen.append(gauges())

    def gauges() -> dict[str, float]:
        families = {family.name: family for family in way.pacer.collect()}
        return {name: families[f"headrace_spark_{name}"].samples[0].value for name in ("staging_rows", "key_skew")}

    way = Staged(bench.settings, bench.ledger, Looking(), Patience(0), lambda: None)
    other = record(9, document(7, [member(1, {"a": 1, "b": 2, "c": 3})], source="te/device/b//"))
    monkeypatch.setattr(paths, "stage", lambda *_: [bench.task(0, mixed()), bench.task(1, [other])])
    try:
        way.write(None, _BATCH)
        assert seen == [{"staging_rows": 16, "key_skew": 13 / 16}]
        assert gauges() == {"staging_rows": 0, "key_skew": 13 / 16}
    finally:
        way.stop()


def test_the_room_of_deleted_rows_is_given_back(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_spark.staged.TIDY_ROWS", 10)
    bench = make()
    small = bench.write([record(0, document(1, [member(1, 1.0)]))])
    assert bench.sql("SELECT pg_relation_size('hr_stage_measurements') > 0") == [(True,)]
    large = bench.write([record(1, document(2, [member(t, t) for t in range(20)]))], Batch("q", 1))
    assert bench.sql("SELECT pg_relation_size('hr_stage_measurements')") == [(0,)]
    assert bench.ledger.totals().inserted == small.inserted + large.inserted == len(bench.stored())


def test_the_index_of_an_older_release_goes_away(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.sql("CREATE INDEX hr_stage_measurements_key ON hr_stage_measurements (query_id, batch_id)")
    staging.prepare(bench.url, "measurements")
    assert bench.sql("SELECT indexname FROM pg_indexes WHERE tablename = 'hr_stage_measurements'") == []

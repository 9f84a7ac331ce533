"""The task's side of the staged path (spark-writer.md 7, step 2): rows go by COPY into an unlogged table.

Theory: each chunk is one transaction and one paced operation. A staged row says which attempt wrote it, and an attempt
has a name that no other ever has; only the rows of attempts that Spark accepted are merged, all others are swept. So a
task may die anywhere and be repeated, and a driver that started again never mistakes old rows for new ones.
A chunk whose COPY failed may have been committed all the same; as rows are merged by key and version it has no second
effect, but it would spoil the count of rows. So a chunk that is tried again removes its earlier try first: `chunk`.

The table has no index: a micro-batch reads all of its rows once and then removes them, and an index would cost more
than the COPY itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from headrace_core.errors import HeadraceError
from headrace_spark.database import HASTY, PREPARING, Database
from headrace_spark.faults import Faults
from headrace_spark.pacing import Pacing
from headrace_spark.seen import Seen
from headrace_spark.sinks.copying import COLUMNS, copied
from headrace_spark.sinks.port import Batch, SinkDown
from headrace_spark.transforms.costs import Cost, Dearest
from headrace_spark.transforms.records import Place, Report, light
from headrace_spark.transforms.rows import Bounds, Row, first, rows

_TABLE: Final = sql.SQL("""
CREATE UNLOGGED TABLE IF NOT EXISTS {staging} (
  query_id text NOT NULL, batch_id bigint NOT NULL,
  part integer NOT NULL, attempt text NOT NULL, chunk integer NOT NULL,
  topic text COLLATE "C" NOT NULL, kafka_partition integer NOT NULL, kafka_offset bigint NOT NULL,
  source text COLLATE "C" NOT NULL, metric text COLLATE "C" NOT NULL, time_ms bigint NOT NULL,
  value double precision NOT NULL, boolean boolean NOT NULL, closed_at bigint NOT NULL, batch text COLLATE "C" NOT NULL)
""")
_UNINDEXED: Final = sql.SQL("DROP INDEX IF EXISTS {index}")
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_REMOVE: Final = sql.SQL(
    "DELETE FROM {staging} WHERE query_id = %s AND batch_id = %s AND part = %s AND attempt = %s AND chunk = %s"
)
_DISPATCH: Final = "INSERT INTO hr_dispatch (at_ns, cost, rows) VALUES (%s, %s, %s)"
_BRIEFLY: Final = "SET LOCAL lock_timeout = '1s'"


class StagingLost(HeadraceError):
    """The staging table does not have the rows that the tasks reported; the micro-batch must be repeated."""

    code = "staging_lost"
    retry = True


class TaskReport(msgspec.Struct, frozen=True, array_like=True):
    """What one task attempt did: rows staged, chunks, what all tries of them cost, how often one was tried again; and
    what it found in each record, without the measurements; and what was seen on the way."""

    part: int
    attempt: str
    rows: int
    requests: int
    cost: int
    retries: int
    reports: list[Report]
    seen: Seen | None = None


class Work(msgspec.Struct, frozen=True):
    """What a task must know. `bounds` are those of a COPY, `dearest` what a single row may cost; `run` names the
    driver's process, `down_max_ms` is how long an attempt waits for a store that is down."""

    dsn: str
    table: str
    batch: Batch
    run: str
    bounds: Bounds
    cost: Cost
    dearest: Dearest | None
    max_document_bytes: int
    down_max_ms: int
    faults: Faults


def staging_name(table: str) -> str:
    """The staging table of a target; PostgreSQL cuts names at 63 bytes, so a long one is cut here."""
    return f"hr_stage_{table}"[:58]


def prepare(dsn: str, table: str) -> None:
    """Create the staging table of the target. Raises `SinkDown`."""
    staging = staging_name(table)
    names = {"staging": sql.Identifier(staging), "index": sql.Identifier(f"{staging}_key")}
    try:
        with psycopg.connect(dsn) as db:
            db.execute(PREPARING)
            db.execute(_TABLE.format(**names))
            db.commit()
            with suppress(psycopg.errors.LockNotAvailable):  # of an older release; another job is at work, so later
                db.execute(_BRIEFLY)
                db.execute(_UNINDEXED.format(**names))
    except psycopg.OperationalError as error:
        raise SinkDown(str(error)) from error


def staged_ever(database: Database, table: str) -> int:
    """How many rows all jobs ever staged for the target, as PostgreSQL's statistics have it, up to some seconds late: a
    number that grows as long as tasks make progress, and costs nothing to ask. Raises `StateDown`."""
    query = "SELECT coalesce(pg_stat_get_tuples_inserted(to_regclass(?)::oid), 0)"
    with database.transaction() as at:
        return int(at.rows(query, (f'"{staging_name(table)}"',))[0][0])


class Connection:
    """One connection of a Python worker, opened again when it was lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._open: psycopg.Connection[tuple[Any, ...]] | None = None

    def get(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The connection, autocommit. Its commits do not wait for the disk: all that it writes is staged rows, which a
        crash of the server takes anyway, and records of what went out."""
        if self._open is None or self._open.closed:
            self._open = psycopg.connect(self._dsn, autocommit=True, client_encoding="utf-8")
            self._open.execute(HASTY)
        return self._open

    def drop(self) -> None:
        """It does not answer any more."""
        if self._open is not None:
            self._open.close()
            self._open = None


class Stager:
    """One task attempt. `attempt` is the name of the attempt, `number` its number within the stage."""

    def __init__(
        self, work: Work, part: int, number: int, attempt: str, connection: Connection, pacer: Pacing,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:  # fmt: skip
        self._work = work
        self._part, self._number, self._attempt = part, number, attempt
        self._connection = connection
        self._pacer = pacer
        self._sleep = sleep
        self._waiting: list[tuple[Place, Row]] = []
        self._reports: list[Report] = []
        self._rows = self._chunks = self._cost = self._retries = 0

    def add(self, report: Report) -> None:
        """Stage the rows of a record, as soon as a chunk is full. Raises `SinkDown`."""
        self._reports.append(light(report))
        if report.taken is not None:
            self._waiting += [(report.place, row) for row in rows(report.taken)]
        while len(self._waiting) > self._work.bounds.rows:
            self._flush()
            self._work.faults.passed("task", self._work.batch.batch_id, self._part, self._number)

    def finish(self) -> TaskReport:
        """Stage what is left; returns what was done."""
        while self._waiting:
            self._flush()
        return TaskReport(self._part, self._attempt, self._rows, self._chunks, self._cost, self._retries, self._reports)

    def _flush(self) -> None:
        waiting = [row for _, row in self._waiting[: self._work.bounds.rows]]
        count = len(first(waiting, self._work.cost.of, self._work.bounds))
        chunk, self._waiting = self._waiting[:count], self._waiting[count:]
        cost = self._work.cost.of([row for _, row in chunk])
        self._patiently(lambda again: self._pacer.run(cost, lambda at_ns: self._copy(at_ns, cost, chunk, again)))
        self._rows += len(chunk)
        self._chunks += 1

    def _copy(self, at_ns: int, cost: int, chunk: list[tuple[Place, Row]], again: bool) -> None:
        """One attempt at a chunk. What goes out is recorded first, in a transaction of its own."""
        db = self._connection.get()
        db.execute(_DISPATCH, (at_ns, cost, len(chunk)))
        self._cost += cost
        staging = sql.Identifier(staging_name(self._work.table))
        data = copied(self._work.batch, self._part, self._attempt, self._chunks, chunk)
        if not again:
            _copy(db, staging, data)  # one statement is one transaction
            return
        batch = self._work.batch
        with db.transaction():
            whose = (batch.query_id, batch.batch_id, self._part, self._attempt, self._chunks)
            db.execute(_REMOVE.format(staging=staging), whose)
            _copy(db, staging, data)

    def _patiently(self, work: Callable[[bool], None]) -> None:
        """Try until it works; a store that stays down longer than `down_max_ms` fails the task."""
        wait, waited, again = _FIRST_WAIT_S, 0.0, False
        while True:
            try:
                return work(again)
            except psycopg.OperationalError as error:
                self._connection.drop()
                if waited * 1000 >= self._work.down_max_ms:
                    raise SinkDown(str(error)) from error
            self._sleep(wait)
            waited, wait, again = waited + wait, min(wait * 2, _LONGEST_WAIT_S), True
            self._retries += 1


def _copy(db: psycopg.Connection[tuple[Any, ...]], staging: sql.Identifier, data: bytes) -> None:
    names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    with (
        db.cursor() as cursor,
        cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(staging, names)) as copy,
    ):
        copy.write(data)

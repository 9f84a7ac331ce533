"""PostgreSQL as a sink (spark-writer.md 7, path `direct`).

A request is sent as arrays and unfolded in the server, so it is four statements at most, whatever its size. Texts
that take part in versions compare by bytes (`COLLATE "C"`), as Python and SQLite do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace_spark.database import PREPARING
from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.transforms.rows import Request

_OUTCOMES: Final = sql.SQL("""
CREATE TABLE IF NOT EXISTS hr_request (
  query_id text NOT NULL, batch_id bigint NOT NULL, request_id text NOT NULL,
  inserted bigint NOT NULL, replaced bigint NOT NULL, repeats bigint NOT NULL,
  PRIMARY KEY (query_id, batch_id, request_id))""")
_TABLE: Final = sql.SQL("""
CREATE TABLE IF NOT EXISTS {table} (
  source text COLLATE "C" NOT NULL, metric text COLLATE "C" NOT NULL, time_ms bigint NOT NULL,
  value double precision NOT NULL, boolean boolean NOT NULL, closed_at bigint NOT NULL, batch text COLLATE "C" NOT NULL,
  PRIMARY KEY (source, metric, time_ms))""")
_ENTER: Final = "INSERT INTO hr_request VALUES (%s, %s, %s, 0, 0, 0) ON CONFLICT DO NOTHING"
"""Waits for the end of another transaction that writes the same request: a task that Spark gave up may still be at it,
beside the one that repeats it."""
_THIS: Final = " WHERE query_id = %s AND batch_id = %s AND request_id = %s"
_KNOWN: Final = "SELECT inserted, replaced, repeats FROM hr_request" + _THIS
_RECORD: Final = "UPDATE hr_request SET inserted = %s, replaced = %s, repeats = %s" + _THIS
_ROWS: Final = "unnest(%s::text[], %s::text[], %s::bigint[], %s::float8[], %s::boolean[], %s::bigint[], %s::text[])"
_INSERT: Final = sql.SQL(
    "INSERT INTO {table} (source, metric, time_ms, value, boolean, closed_at, batch) SELECT * FROM "
    + _ROWS
    + " ON CONFLICT (source, metric, time_ms) DO NOTHING"
)
_REPLACE: Final = sql.SQL(
    "UPDATE {table} AS t SET value = n.value, boolean = n.boolean, closed_at = n.closed_at, batch = n.batch FROM "
    + _ROWS
    + " AS n(source, metric, time_ms, value, boolean, closed_at, batch)"
    " WHERE t.source = n.source AND t.metric = n.metric AND t.time_ms = n.time_ms"
    ' AND (t.closed_at, t.batch) < (n.closed_at, n.batch COLLATE "C")'
)


class PostgresSink:
    """Implements `Sink`. `dsn` is a connection URL; `table` holds the measurements."""

    def __init__(self, dsn: str, table: str = "measurements") -> None:
        self._dsn = dsn
        self._table = sql.Identifier(table)
        self._open: psycopg.Connection[tuple[Any, ...]] | None = None

    def prepare(self) -> None:
        with self._transaction() as db:
            db.execute(PREPARING)
            db.execute(_TABLE.format(table=self._table))
            db.execute(_OUTCOMES)

    def outcomes(self, batch: Batch) -> dict[str, Outcome]:
        query = "SELECT request_id, inserted, replaced, repeats FROM hr_request WHERE query_id = %s AND batch_id = %s"
        with self._transaction() as db:
            return {row[0]: Outcome(*row[1:]) for row in db.execute(query, (batch.query_id, batch.batch_id))}

    def write(self, batch: Batch, request: Request) -> Outcome:
        key = (batch.query_id, batch.batch_id, request.id)
        with self._transaction() as db:
            if not db.execute(_ENTER, key).rowcount:
                known = db.execute(_KNOWN, key).fetchone()
                assert known is not None, "a transaction that entered it has committed"
                return Outcome(*known)
            outcome = self._upsert(db, request)
            db.execute(_RECORD, (outcome.inserted, outcome.replaced, outcome.repeats, *key))
            return outcome

    def forget(self, batch: Batch) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM hr_request WHERE query_id = %s AND batch_id = %s", (batch.query_id, batch.batch_id))

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _upsert(self, db: psycopg.Connection[tuple[Any, ...]], request: Request) -> Outcome:
        columns = _columns(request)
        inserted = db.execute(_INSERT.format(table=self._table), columns).rowcount
        replaced = 0
        if inserted < len(request.rows):
            replaced = db.execute(_REPLACE.format(table=self._table), columns).rowcount
        return Outcome(inserted, replaced, len(request.rows) - inserted - replaced)

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        try:
            if self._open is None or self._open.closed:
                self._open = psycopg.connect(self._dsn, autocommit=True)
            with self._open.transaction():
                yield self._open
        except psycopg.OperationalError as error:  # lost connections, 40001, 40P01
            self.close()
            raise SinkDown(str(error)) from error


def _columns(request: Request) -> list[list[Any]]:
    return [
        [row.source for row in request.rows],
        [row.metric for row in request.rows],
        [row.time_ms for row in request.rows],
        [row.value for row in request.rows],
        [row.boolean for row in request.rows],
        [row.closed_at for row in request.rows],
        [row.batch for row in request.rows],
    ]

"""PostgreSQL as a sink (spark-writer.md 7, path `direct`).

Theory: nearly every row of a fleet is new. So a request goes out by COPY into the table itself, and the table's key
says whether all of it was new; if so, that was the upsert. Else COPY is undone to its savepoint, and the rows are sent
as arrays and unfolded in the server: rows that are new are inserted, those with a higher version replace. How often
COPY is tried follows how it ends (`Trial`), and changes nothing but the speed.

COPY's binary format is only for columns of the very types of `_TABLE`; a table that somebody made with others gets
arrays, which the server casts. Texts that take part in versions compare by bytes (`COLLATE "C"`), as Python and SQLite
do.

No request waits for the disk. All of a micro-batch are made durable at once, by the commit of `secure`: what was
committed before it is in the log before it. A crash of the server until then takes the newest requests, rows and
outcomes alike; `secure` sees that, and the micro-batch is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace_core.errors import ConfigError, HeadraceError
from headrace_spark.database import PREPARING
from headrace_spark.sinks.copying import MEASURED, measured
from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.transforms.rows import Request

_Connection = psycopg.Connection[tuple[Any, ...]]
_OUTCOMES: Final = sql.SQL("""
CREATE TABLE IF NOT EXISTS hr_request (
  query_id text NOT NULL, batch_id bigint NOT NULL, request_id text NOT NULL,
  inserted bigint NOT NULL, replaced bigint NOT NULL, repeats bigint NOT NULL,
  PRIMARY KEY (query_id, batch_id, request_id))""")
_TABLE: Final = sql.SQL("""
CREATE TABLE IF NOT EXISTS {table} (
  source text COLLATE "C" NOT NULL, metric text COLLATE "C" NOT NULL, time_ms bigint NOT NULL,
  value double precision NOT NULL, boolean boolean NOT NULL, closed_at bigint NOT NULL,
  batch text COLLATE "C" NOT NULL{key})""")
_KEY: Final = sql.SQL(", PRIMARY KEY (source, metric, time_ms)")
_ENTER: Final = (
    "INSERT INTO hr_request SELECT %s, %s, %s, 0, 0, 0"
    " FROM (SELECT set_config('synchronous_commit', 'off', true)) AS hasty ON CONFLICT DO NOTHING"
)
"""Waits for the end of another transaction that writes the same request: a task that Spark gave up may still be at it,
beside the one that repeats it."""
_SECURED: Final = "INSERT INTO hr_request VALUES (%s, %s, '', 0, 0, 0) ON CONFLICT DO NOTHING"
_SECURE: Final = "UPDATE hr_request SET repeats = repeats + 1 WHERE query_id = %s AND batch_id = %s AND request_id = ''"
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
_COPY: Final = sql.SQL("COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)")
_COLUMNS: Final = """
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) AND NOT attisdropped"""
_UNKEYED: Final = """
SELECT c.relkind IN ('r', 'p') AND NOT EXISTS (
  SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
    AND i.indpred IS NULL AND i.indexprs IS NULL AND (
      SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute AS a
      WHERE a.attrelid = c.oid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
    ) = ARRAY['metric', 'source', 'time_ms'])
FROM pg_class AS c WHERE c.oid = to_regclass(%s)"""
_TEXTS: Final = ("text", "character varying")
_TYPES: Final = {"source": _TEXTS, "metric": _TEXTS, "batch": _TEXTS, "time_ms": ("bigint",), "closed_at": ("bigint",),
                 "value": ("double precision",), "boolean": ("boolean",)}  # fmt: skip
LONGEST: Final = 64


class OutcomesLost(HeadraceError):
    """The store lost what tasks wrote; the micro-batch must be repeated."""

    code = "outcomes_lost"
    retry = True


class Trial:
    """Whether COPY is worth a try: always while it works; after `n` failures in a row every `2 ** n`th time, and every
    `LONGEST`th at least."""

    def __init__(self) -> None:
        self._skip = self._pause = 0

    def due(self) -> bool:
        """Whether this request is to try."""
        if self._skip:
            self._skip -= 1
            return False
        return True

    def ended(self, well: bool) -> None:
        """How the try ended."""
        self._pause = 0 if well else min(2 * self._pause + 1, LONGEST - 1)
        self._skip = self._pause


class PostgresSink:
    """Implements `Sink`. `dsn` is a connection URL; `table` holds the measurements, and is made without a key if rows
    are appended (`append`)."""

    def __init__(self, dsn: str, table: str = "measurements", *, append: bool = False) -> None:
        self._dsn = dsn
        self._name = table
        self._table = sql.Identifier(table)
        self._append = append
        self._trial = Trial()
        self._copies: bool | None = None
        self._open: _Connection | None = None

    def prepare(self) -> None:
        """See `Sink`. Raises `ConfigError` for a table that is there without the key by which rows replace others."""
        with self._transaction() as db:
            db.execute(PREPARING)
            db.execute(_TABLE.format(table=self._table, key=sql.SQL("") if self._append else _KEY))
            db.execute(_OUTCOMES)
            unkeyed = db.execute(_UNKEYED, (f'"{self._name}"',)).fetchone()
        if unkeyed == (True,) and not self._append:
            raise ConfigError("table", f"{self._name} has no unique key of source, metric and time_ms")

    def outcomes(self, batch: Batch) -> dict[str, Outcome]:
        query = (
            "SELECT request_id, inserted, replaced, repeats FROM hr_request"
            " WHERE query_id = %s AND batch_id = %s AND request_id <> ''"
        )
        with self._transaction() as db:
            return {row[0]: Outcome(*row[1:]) for row in db.execute(query, (batch.query_id, batch.batch_id))}

    def write(self, batch: Batch, request: Request) -> Outcome:
        key = (batch.query_id, batch.batch_id, request.id)
        with self._transaction() as db:
            if not db.execute(_ENTER, key).rowcount:
                known = db.execute(_KNOWN, key).fetchone()
                assert known is not None, "a transaction that entered it has committed"
                return Outcome(*known)
            outcome = self._copied(db, request) or self._upsert(db, request)
            db.execute(_RECORD, (outcome.inserted, outcome.replaced, outcome.repeats, *key))
            return outcome

    def secure(self, batch: Batch, requests: Collection[str]) -> None:
        """Make durable what these requests of the micro-batch wrote. Raises `OutcomesLost`, `SinkDown`."""
        key = batch.query_id, batch.batch_id
        with self._transaction() as db:
            db.execute(_SECURED, key)
            db.execute(_SECURE, key)  # a commit that changes nothing would not wait for the disk
        lost = set(requests) - self.outcomes(batch).keys()
        if lost:
            raise OutcomesLost(f"micro-batch {batch.batch_id}: {len(lost)} requests are gone, as after a crash")

    def forget(self, batch: Batch) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM hr_request WHERE query_id = %s AND batch_id = %s", (batch.query_id, batch.batch_id))

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _copied(self, db: _Connection, request: Request) -> Outcome | None:
        """All rows by COPY; None if some of them are there already, or COPY cannot be used. Raises what a constraint
        other than a key raises."""
        if self._copies is None:
            self._copies = self._takes_copies(db)
        if not self._copies or not self._trial.due():
            return None
        names, whole = sql.SQL(", ").join(map(sql.Identifier, MEASURED)), True
        try:
            with db.transaction(), db.cursor() as cursor:
                with cursor.copy(_COPY.format(table=self._table, columns=names)) as copy:
                    copy.write(measured(request.rows))
                whole = cursor.rowcount == len(request.rows)
                if not whole:  # a trigger has left out some
                    raise psycopg.Rollback
        except psycopg.errors.UniqueViolation:
            self._trial.ended(well=False)
            return None
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.WrongObjectType):  # row-level security, a view
            self._copies = False
            return None
        if not whole:
            self._copies = False
            return None
        self._trial.ended(well=True)
        return Outcome(inserted=len(request.rows))

    def _takes_copies(self, db: _Connection) -> bool:
        found = db.execute(_COLUMNS, (f'"{self._name}"', list(_TYPES))).fetchall()
        return len(found) == len(_TYPES) and all(kind in _TYPES[name] for name, kind in found)

    def _upsert(self, db: _Connection, request: Request) -> Outcome:
        columns = _columns(request)
        inserted = db.execute(_INSERT.format(table=self._table), columns).rowcount
        replaced = 0
        if inserted < len(request.rows):
            replaced = db.execute(_REPLACE.format(table=self._table), columns).rowcount
        return Outcome(inserted, replaced, len(request.rows) - inserted - replaced)

    @contextmanager
    def _transaction(self) -> Iterator[_Connection]:
        try:
            if self._open is None or self._open.closed:
                self._open = psycopg.connect(self._dsn, autocommit=True, client_encoding="utf-8")
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

"""SQLite as a sink: one file, one writer (spark-writer.md 7, path `direct`).

Write-ahead log with `synchronous=NORMAL`: a transaction survives kill -9 of this process. The table is keyed by the row
id; a row is inserted, or replaces one with a lower version, or has no effect.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.transforms.rows import Request, Row

_OUTCOMES: Final = """
CREATE TABLE IF NOT EXISTS hr_request (
  query_id TEXT NOT NULL, batch_id INTEGER NOT NULL, request_id TEXT NOT NULL,
  inserted INTEGER NOT NULL, replaced INTEGER NOT NULL, repeats INTEGER NOT NULL,
  PRIMARY KEY (query_id, batch_id, request_id)) WITHOUT ROWID"""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
  source TEXT NOT NULL, metric TEXT NOT NULL, time_ms INTEGER NOT NULL,
  value REAL NOT NULL, boolean INTEGER NOT NULL, closed_at INTEGER NOT NULL, batch TEXT NOT NULL,
  PRIMARY KEY (source, metric, time_ms)) WITHOUT ROWID"""
_INSERT: Final = """
INSERT INTO {table} (source, metric, time_ms, value, boolean, closed_at, batch) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (source, metric, time_ms) DO NOTHING"""
_REPLACE: Final = """
UPDATE {table} SET value = ?4, boolean = ?5, closed_at = ?6, batch = ?7
WHERE source = ?1 AND metric = ?2 AND time_ms = ?3 AND (closed_at, batch) < (?6, ?7)"""


class SqliteSink:
    """Implements `Sink`. `path` is the database file; `table` holds the measurements and must be an identifier."""

    def __init__(self, path: Path, table: str = "measurements") -> None:
        self._path = path
        self._table = f'"{table}"'
        self._open: sqlite3.Connection | None = None

    def prepare(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._transaction() as db:
            db.execute(_TABLE.format(table=self._table))
            db.execute(_OUTCOMES)

    def outcomes(self, batch: Batch) -> dict[str, Outcome]:
        query = "SELECT request_id, inserted, replaced, repeats FROM hr_request WHERE query_id = ? AND batch_id = ?"
        with self._transaction() as db:
            return {row[0]: Outcome(*row[1:]) for row in db.execute(query, (batch.query_id, batch.batch_id))}

    def write(self, batch: Batch, request: Request) -> Outcome:
        key = (batch.query_id, batch.batch_id, request.id)
        with self._transaction() as db:
            known = db.execute(
                "SELECT inserted, replaced, repeats FROM hr_request"
                " WHERE query_id = ? AND batch_id = ? AND request_id = ?",
                key,
            ).fetchone()
            if known:
                return Outcome(*known)
            outcome = self._upsert(db, request)
            numbers = (outcome.inserted, outcome.replaced, outcome.repeats)
            db.execute("INSERT INTO hr_request VALUES (?, ?, ?, ?, ?, ?)", (*key, *numbers))
            return outcome

    def forget(self, batch: Batch) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM hr_request WHERE query_id = ? AND batch_id = ?", (batch.query_id, batch.batch_id))

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _upsert(self, db: sqlite3.Connection, request: Request) -> Outcome:
        values = [_values(row) for row in request.rows]
        inserted = _changes(db, lambda: db.executemany(_INSERT.format(table=self._table), values))
        replaced = 0
        if inserted < len(values):
            replaced = _changes(db, lambda: db.executemany(_REPLACE.format(table=self._table), values))
        return Outcome(inserted, replaced, len(values) - inserted - replaced)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._connection()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self.close()
            raise SinkDown(str(error)) from error

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
            self._open.execute("PRAGMA journal_mode = WAL")
            self._open.execute("PRAGMA synchronous = NORMAL")
        return self._open


def _values(row: Row) -> tuple[str, str, int, float, bool, int, str]:
    return row.source, row.metric, row.time_ms, row.value, row.boolean, row.closed_at, row.batch


def _changes(db: sqlite3.Connection, work: Callable[[], sqlite3.Cursor]) -> int:
    before = db.total_changes
    with closing(work()):
        return db.total_changes - before

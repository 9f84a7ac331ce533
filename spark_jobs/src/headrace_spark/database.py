"""One small face for the two databases that can hold the job's state: SQLite and PostgreSQL.

SQL is written once, with `?` for a value and only what both databases know. One connection, one caller at a time; a
connection that was lost is opened again by the next transaction.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg

from headrace_core.errors import ConfigError, HeadraceError

PREPARING: Final = "SELECT pg_advisory_xact_lock(hashtext('headrace prepare'))"
"""PostgreSQL: before tables are made. Two `CREATE TABLE IF NOT EXISTS` at once can fail with a unique violation."""

HASTY: Final = "SET synchronous_commit = off"
"""PostgreSQL: commits of this connection do not wait for the disk. A crash of the server, and nothing else, may take
those of the last half second."""
_CHUNK: Final = 500


class StateDown(HeadraceError):
    """The state store cannot be reached for now."""

    code = "state_down"
    retry = True


class _Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchall(self) -> list[Any]: ...


class Transaction:
    """What can be done inside a transaction."""

    def __init__(self, connection: Any, postgres: bool) -> None:
        self._connection = connection
        self._postgres = postgres

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run one statement; returns how many rows it changed."""
        return self._cursor(statement, values).rowcount

    def make(self, tables: Iterable[str]) -> None:
        """Make the tables that are missing; jobs that start at once take turns."""
        if self._postgres:
            self._connection.execute(PREPARING)
        for table in tables:
            self.run(table)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return [tuple(row) for row in self._cursor(statement, values).fetchall()]

    def among(self, table: str, fixed: tuple[str, str], column: str, wanted: Sequence[str]) -> set[str]:
        """Those of the texts `wanted` that a row of the table has in `column`, beside the `fixed` (column, value). One
        look into the index of both columns for each: PostgreSQL would read all rows with the fixed value for a table of
        which it knows nothing yet."""
        name, value = fixed
        if self._postgres:
            query = (
                f"SELECT w.x FROM unnest(?::text[]) AS w(x) CROSS JOIN LATERAL"
                f" (SELECT 1 FROM {table} WHERE {name} = ? AND {column} = w.x LIMIT 1) AS found"
            )
            return {row[0] for row in self.rows(query, (list(wanted), value))}
        found = set[str]()
        for start in range(0, len(wanted), _CHUNK):
            part = wanted[start : start + _CHUNK]
            query = f"SELECT {column} FROM {table} WHERE {name} = ? AND {column} IN ({', '.join('?' * len(part))})"
            found |= {row[0] for row in self.rows(query, (value, *part))}
        return found

    def put(self, table: str, column: str, wanted: Sequence[str], beside: Mapping[str, int | str]) -> None:
        """Insert a row for each of the texts in `column`, all with the values `beside`, unless it is there."""
        names, marks = ", ".join([*beside, column]), ", ".join("?" * len(beside))
        if self._postgres:
            query = f"INSERT INTO {table} ({names}) SELECT {marks}, x FROM unnest(?::text[]) AS w(x)"
            self.run(f"{query} ON CONFLICT DO NOTHING", (*beside.values(), list(wanted)))
            return
        query = f"INSERT INTO {table} ({names}) VALUES ({marks}, ?) ON CONFLICT DO NOTHING"
        self.many(query, [(*beside.values(), one) for one in wanted])

    def many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each of many value lists."""
        cursor = self._connection.cursor()
        cursor.executemany(self._sql(statement), list(values))

    def _cursor(self, statement: str, values: Sequence[Any]) -> _Cursor:
        cursor: _Cursor = self._connection.execute(self._sql(statement), tuple(values))
        return cursor

    def _sql(self, statement: str) -> str:
        return statement.replace("?", "%s") if self._postgres else statement


class Database:
    """`dsn` is `sqlite:///absolute/path` or a PostgreSQL URL. Calls from several threads take turns."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._postgres = is_postgres(dsn)
        self._open: Any = None
        self._turn = threading.RLock()

    def once(self, statement: str, values: Sequence[Any] = ()) -> int:
        """One statement as a transaction of its own; returns how many rows it changed. Raises `StateDown`."""
        with self._turn:
            try:
                return Transaction(self._connection(), self._postgres).run(statement, values)
            except (sqlite3.OperationalError, psycopg.OperationalError) as error:
                self.close()
                raise StateDown(str(error)) from error

    def note(self, table: str, row: Mapping[str, int | str], only_if: tuple[str, Sequence[Any]] | None = None) -> bool:
        """Insert one row, as a transaction of its own whose commit does not wait for the disk (`HASTY`; SQLite waits
        at none). False: nothing was inserted, as the query `only_if` finds no row, or the row is there. Raises
        `StateDown`."""
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        condition, values = only_if or ("SELECT 1", ())
        hasty = "(SELECT set_config('synchronous_commit', 'off', true)) AS hasty" if self._postgres else "(SELECT 1)"
        insert = f"INSERT INTO {table} ({names}) SELECT {marks} FROM {hasty} WHERE EXISTS ({condition})"
        return self.once(f"{insert} ON CONFLICT DO NOTHING", [*row.values(), *values]) > 0

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """All or nothing; raises `StateDown` if the database is not there or gave up."""
        with self._turn:
            try:
                yield from self._inside()
            except (sqlite3.OperationalError, psycopg.OperationalError) as error:
                self.close()
                raise StateDown(str(error)) from error

    def _inside(self) -> Iterator[Transaction]:
        connection = self._connection()
        connection.execute("BEGIN" if self._postgres else "BEGIN IMMEDIATE")
        try:
            yield Transaction(connection, self._postgres)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def close(self) -> None:
        """Give the connection back."""
        with self._turn:
            if self._open is not None:
                self._open.close()
                self._open = None

    def _connection(self) -> Any:
        if self._open is None:
            self._open = psycopg.connect(self._dsn, autocommit=True) if self._postgres else _sqlite(self._dsn)
        return self._open


def is_postgres(dsn: str) -> bool:
    """Which of the two; raises `ConfigError` for neither."""
    if dsn.startswith(("postgresql://", "postgres://")):
        return True
    if dsn.startswith("sqlite:///"):
        return False
    raise ConfigError("dsn", f"must begin with sqlite:/// or postgresql://, not {dsn.split('://')[0]!r}")


def sqlite_path(dsn: str) -> Path:
    """The file of a `sqlite:///abs/path.db` URL (what follows the two slashes)."""
    return Path(dsn.removeprefix("sqlite://"))


def _sqlite(dsn: str) -> sqlite3.Connection:
    path = sqlite_path(dsn)
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection

"""Leases in PostgreSQL, the store for production (capacity.md 16).

One row a resource, one transaction a call: the row is locked, the server's `clock_timestamp()` is read *after* the
lock was got, core decides, the row is written, the commit is synchronous. No advisory locks, no clock of any client.

A client that is stopped while it has the row locked would hold up all the others: the server ends its transaction after
`IDLE_MS`. A failover that can lose commits needs a quarantine at least as long as the gap. A wall clock of the server
that is *set* (not slewed) moves all deadlines of the store at once; run it under a time service that slews.
"""

from __future__ import annotations

from typing import Any

import psycopg

from headrace_capacity.calls import Result
from headrace_capacity.kept import KeptStore, Step, opened
from headrace_core.capacity.errors import UnknownResource
from headrace_core.capacity.protocol import ResourceConfig

IDLE_MS = 1_000
"""How long a transaction may stand still with the row locked."""

TABLE = "CREATE TABLE IF NOT EXISTS hr_lease (resource text PRIMARY KEY, state bytea NOT NULL)"
OPEN = "INSERT INTO hr_lease (resource, state) VALUES (%s, %s) ON CONFLICT DO NOTHING"
NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
LOCK = (
    "WITH kept AS MATERIALIZED (SELECT state FROM hr_lease WHERE resource = %s FOR UPDATE) "
    f"SELECT state, {NOW} FROM kept"
)
LOOK = f"SELECT state, {NOW} FROM hr_lease WHERE resource = %s"
WRITE = "UPDATE hr_lease SET state = %s WHERE resource = %s"
DUPLICATES = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)


class PostgresStore(KeptStore[psycopg.Connection[Any]]):
    """`LeaseStore` at `dsn` (a libpq URL)."""

    def __init__(self, dsn: str, *, call_timeout_ms: int = 2_000) -> None:
        self._dsn = dsn
        super().__init__("the lease store in PostgreSQL", call_timeout_ms)

    def _create(self, connection: psycopg.Connection[Any], resource: ResourceConfig) -> None:
        _make_table(connection)
        now_ms = _one(connection.execute(f"SELECT {NOW}"))[0]
        connection.execute(OPEN, (resource.resource, opened(resource, now_ms, learning=False)))

    def _step(self, connection: psycopg.Connection[Any], resource: str, step: Step[Result]) -> Result:
        with connection.transaction():
            after, result = step(*_found(connection, LOCK, resource))
            if after is not None:
                connection.execute(WRITE, (after, resource))
        return result

    def _look(self, connection: psycopg.Connection[Any], resource: str) -> tuple[bytes, int]:
        return _found(connection, LOOK, resource)

    def _connect(self) -> psycopg.Connection[Any]:
        limit_ms = self._timeout_ms
        return psycopg.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=max(2, -(-limit_ms // 1000)),
            tcp_user_timeout=limit_ms,
            application_name="headrace-capacity",
            options=f"-c statement_timeout={limit_ms} -c lock_timeout={limit_ms} "
            f"-c idle_in_transaction_session_timeout={IDLE_MS} -c synchronous_commit=on",
        )


def _make_table(connection: psycopg.Connection[Any]) -> None:
    """Two that make it at one time: one of them finds it made."""
    if _one(connection.execute("SELECT to_regclass('hr_lease')"))[0] is None:
        try:
            connection.execute(TABLE)
        except DUPLICATES:
            return


def _found(connection: psycopg.Connection[Any], query: str, resource: str) -> tuple[bytes, int]:
    """State and the server's time in ms. Raises `UnknownResource`, also where not even the table is there."""
    try:
        row = connection.execute(query, (resource,)).fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    if row is None:
        raise UnknownResource(resource)
    return bytes(row[0]), int(row[1])


def _one(cursor: psycopg.Cursor[Any]) -> Any:
    row = cursor.fetchone()
    assert row is not None, "a query that always has one row"
    return row

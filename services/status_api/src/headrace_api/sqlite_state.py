"""The state port over one SQLite file: the read replica of a stage's state, all partitions in one database.

Each partition is a state of its own. Python's sqlite3 orders BLOBs by memcmp, so scans are in byte order.
Readers and the one writer use connections of their own (WAL): a reader sees whole transactions only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

SCHEMA = """
CREATE TABLE IF NOT EXISTS item (part INTEGER, k BLOB, v BLOB NOT NULL, PRIMARY KEY (part, k)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS newest (part INTEGER, k BLOB, source INTEGER NOT NULL, PRIMARY KEY (part, k)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (
    part INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL, source INTEGER NOT NULL, contained INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL, partitions INTEGER NOT NULL, synced_s INTEGER NOT NULL
);
"""
BUSY_S = 30.0
FIRST_PAGE, LAST_PAGE = 32, 1024


def connect(path: Path) -> sqlite3.Connection:
    """Open (and create) the database at `path`; transactions are explicit. Raises sqlite3.DatabaseError if damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # the file stays sound; a lost tail is read again
        connection.executescript(SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class SqliteState:
    """One partition of the replica as a `State`."""

    def __init__(self, connection: sqlite3.Connection, partition: int) -> None:
        self._db = connection
        self._part = partition

    def get(self, key: bytes, /) -> bytes | None:
        row = self._db.execute("SELECT v FROM item WHERE part = ? AND k = ?", (self._part, key)).fetchone()
        return row[0] if row else None

    def put(self, key: bytes, value: bytes, /) -> None:
        self._db.execute("INSERT OR REPLACE INTO item VALUES (?, ?, ?)", (self._part, key, value))

    def delete(self, key: bytes, /) -> None:
        self._db.execute("DELETE FROM item WHERE part = ? AND k = ?", (self._part, key))

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """`start <= key < stop` in byte order, in pages, so that no statement outlives a scan that is given up."""
        page = FIRST_PAGE
        while True:
            rows = self._db.execute(
                "SELECT k, v FROM item WHERE part = ? AND k >= ? AND k < ? ORDER BY k LIMIT ?",
                (self._part, start, stop, page),
            ).fetchall()
            yield from rows
            if len(rows) < page:
                return
            start = rows[-1][0] + b"\0"
            page = min(page * 2, LAST_PAGE)

    def write(self, mutations: Mapping[bytes, bytes | None]) -> None:
        """Set many items, None = delete."""
        gone = [(self._part, key) for key, value in mutations.items() if value is None]
        put = [(self._part, key, value) for key, value in mutations.items() if value is not None]
        self._db.executemany("DELETE FROM item WHERE part = ? AND k = ?", gone)
        self._db.executemany("INSERT OR REPLACE INTO item VALUES (?, ?, ?)", put)

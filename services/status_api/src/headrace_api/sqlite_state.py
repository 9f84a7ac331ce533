"""The state port over one SQLite file: the read replica of a stage's state, all partitions in one database.

Each partition is a state of its own. Python's sqlite3 orders BLOBs by memcmp, so scans are in byte order.
Readers and the one writer use connections of their own (WAL): a reader sees whole transactions only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

SCHEMA = """
CREATE TABLE IF NOT EXISTS item (part INTEGER, k BLOB, v BLOB NOT NULL, PRIMARY KEY (part, k)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (part INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL);
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open (and create) the database at `path`; transactions are explicit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")  # the changelog is the truth; a lost tail is read again
    connection.executescript(SCHEMA)
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
        return iter(
            self._db.execute(
                "SELECT k, v FROM item WHERE part = ? AND k >= ? AND k < ? ORDER BY k", (self._part, start, stop)
            )
        )

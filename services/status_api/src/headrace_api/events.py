"""Events: every change of a registration status or its last error (registration.md 13), kept in SQLite for resuming.

They come from the topic `registrations`, whose records say what the status of an id is after a record of `raw`; a
record that changes neither `state` (with `since`) nor `last_error` is no event. The ids of a root are spread over the
partitions of that topic, and each of these has its order; a *place* in the topic is therefore a position in each
partition. The id of an event is the place behind it, as text: any instance can go on from it. Repeats after a crash
of the stream processor change nothing, so they are no events.

    seen     by id: what its status was last      event    the last KEPT of each root, in order of arrival here
    pruned   by root and partition: up to where events have gone; a place before it is too old

Reading begins at the start of the topic, so who is registered is known; events of the past then are those that
compaction has left. One writer, in the follower's thread; readers use connections of their own.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace_api.replica import Counts, Position, opened
from headrace_core.registration.message import read_json, write_json

KEPT = 1_000
FORMAT = "1"
BUSY_S = 30.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (entity TEXT PRIMARY KEY, mark TEXT NOT NULL, state TEXT NOT NULL, parent TEXT)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, root TEXT NOT NULL, part INTEGER NOT NULL, place INTEGER NOT NULL,
    id TEXT NOT NULL, topic_id TEXT NOT NULL, state TEXT NOT NULL, document BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS of_root ON event (root, seq);
CREATE TABLE IF NOT EXISTS pruned (root TEXT, part INTEGER, place INTEGER NOT NULL, PRIMARY KEY (root, part));
CREATE TABLE IF NOT EXISTS position (part INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL, partitions INTEGER NOT NULL, synced_s INTEGER NOT NULL
);
"""


class Told(NamedTuple):
    """A record of `registrations`: name of the entity (`root/topic-id`), its document or None."""

    offset: int
    entity: str
    value: bytes | None


class Event(NamedTuple):
    """`seq` orders the events of this instance; `id` is good on any."""

    seq: int
    id: str
    document: bytes


class TooOld(Exception):
    """Events behind this place are not kept any more, or it is of another log."""


@dataclass(frozen=True)
class At:
    """Where a partition stands."""

    position: Position


def told(message: Any) -> Told:
    """A Kafka message as `EventLog` takes it."""
    return Told(message.offset(), (message.key() or b"").decode(errors="replace"), message.value())


def connect(path: Path) -> sqlite3.Connection:
    """Open (and create) the database. Raises sqlite3.DatabaseError if it is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class EventLog:
    """The one writer: a `follower.Sink`."""

    def __init__(self, path: Path) -> None:
        """Open or create; a damaged file is deleted and built anew."""
        self.path = path
        self.counts = Counts()
        self.partitions: dict[int, At] = {}
        self._tag = ""
        self._db, _ = opened(path, connect)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def begin(self, identity: str, partitions: int, *, max_offline_s: int) -> bool:
        """See Replica.begin."""
        name, now = f"{FORMAT} {identity}", int(time.time())
        row = self._db.execute("SELECT text, partitions, synced_s FROM identity").fetchone()
        fits = row is not None and row[:2] == (name, partitions) and now - row[2] <= max_offline_s
        if not fits:
            self._db.execute("BEGIN IMMEDIATE")
            for table in ("seen", "event", "pruned", "position", "identity"):
                self._db.execute(f"DELETE FROM {table}")
            self._db.execute("INSERT INTO identity VALUES (1, ?, ?, ?)", (name, partitions, now))
            self._db.execute("COMMIT")
            self.counts.rebuilt += 1
        stored = dict(self._db.execute("SELECT part, next_offset FROM position"))
        self.partitions = {part: At(Position(stored.get(part, 0))) for part in range(partitions)}
        self._tag = tag(name)
        return not fits

    def forget(self) -> None:
        """Make the next `begin` start from nothing."""
        self._db.execute("DELETE FROM identity")

    def synced(self) -> None:
        """All partitions are at their ends now."""
        self._db.execute("UPDATE identity SET synced_s = ?", (int(time.time()),))

    def apply(self, records: Iterable[tuple[int, Told]], ends: Iterable[tuple[int, int]] = ()) -> None:
        """Take records (partition, record) and ends of partitions, in one transaction."""
        places = {number: at.position.offset for number, at in self.partitions.items()}
        roots: set[str] = set()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for number, record in records:
                places[number] = record.offset + 1
                self.counts.records += 1
                root = self._take(number, record, places)
                if root is not None:
                    roots.add(root)
            places |= dict(ends)
            for root in roots:
                self._prune(root)
            self._db.executemany("INSERT OR REPLACE INTO position VALUES (?, ?)", places.items())
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self.counts.transactions += 1
        self.partitions = {number: At(Position(place)) for number, place in places.items()}

    def _take(self, number: int, record: Told, places: Mapping[int, int]) -> str | None:
        """Keep one record if it is an event; returns its root then."""
        try:
            document = status_of(record)
        except (ValueError, KeyError, TypeError):
            self.counts.damaged += 1
            return None
        mark, parent = mark_of(document), document.get("waiting_for")
        row = self._db.execute("SELECT mark FROM seen WHERE entity = ?", (record.entity,)).fetchone()
        if row is None and record.value is None:
            return None
        if record.value is None:
            self._db.execute("DELETE FROM seen WHERE entity = ?", (record.entity,))
        else:
            values = (record.entity, mark, document["state"], parent)
            self._db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", values)
        if row is not None and row[0] == mark:
            return None
        root, tid = str(document["root"]), str(document["@topic-id"])
        if document["state"] == "pending":
            document["missing"], document["cycle"] = self._missing(root, tid, parent)
        self._db.execute(
            "INSERT INTO event (root, part, place, id, topic_id, state, document) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (root, number, record.offset, name_of(self._tag, places), tid, document["state"], write_json(document)),
        )
        return root

    def _missing(self, root: str, tid: str, parent: str | None) -> tuple[list[str], bool]:
        """`missing` and `cycle` of registration.md 13, as far as the statuses tell."""
        missing: dict[str, None] = {}
        while parent is not None:
            row = self._db.execute("SELECT state, parent FROM seen WHERE entity = ?", (f"{root}/{parent}",)).fetchone()
            state, above = row or ("unknown", None)
            if state == "registered":
                break
            if parent == tid or parent in missing:
                return list(missing), True
            missing[parent] = None
            parent = above
        return list(missing), False

    def _prune(self, root: str) -> None:
        """Keep the last KEPT of a root."""
        last = self._db.execute(
            "SELECT seq FROM event WHERE root = ? ORDER BY seq DESC LIMIT 1 OFFSET ?", (root, KEPT)
        ).fetchone()
        if last is None:
            return
        gone = self._db.execute(
            "SELECT part, max(place) FROM event WHERE root = ? AND seq <= ? GROUP BY part", (root, *last)
        ).fetchall()
        self._db.executemany(
            "INSERT INTO pruned VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET place = max(place, excluded.place)",
            [(root, part, place) for part, place in gone],
        )
        self._db.execute("DELETE FROM event WHERE root = ? AND seq <= ?", (root, *last))


class Events:
    """Reading what an `EventLog` keeps; may be called by many threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()

    def now(self, root: str) -> tuple[int, str]:
        """Behind the last event of a root: its `seq` here (0: none is kept), and the id of this place ("": none)."""
        with _snapshot(self._connection()) as db:
            row = db.execute("SELECT max(seq) FROM event WHERE root = ?", (root,)).fetchone()
            try:
                return row[0] or 0, name_of(*_place(db))
            except TooOld:
                return row[0] or 0, ""

    def after(self, root: str, seq: int, limit: int = 100) -> list[tuple[Event, str, str]]:
        """The next events of a root behind `seq`, each with topic id and state."""
        rows = self._connection().execute(
            "SELECT seq, id, document, topic_id, state FROM event WHERE root = ? AND seq > ? ORDER BY seq LIMIT ?",
            (root, seq, limit),
        )
        return [(Event(seq, ident, document), tid, state) for seq, ident, document, tid, state in rows]

    def resume(self, root: str, ident: str) -> tuple[int, frozenset[int]]:
        """Where to go on behind the event `ident`: from which `seq`, without these (they come before it there).

        Raises TooOld.
        """
        with _snapshot(self._connection()) as db:
            own, here = _place(db)
            places = read_name(ident)
            if places is None or places[0] != own or len(places[1]) != len(here):
                raise TooOld
            for part, place in db.execute("SELECT part, place FROM pruned WHERE root = ?", (root,)):
                if places[1][part] <= place:
                    raise TooOld
            rows = db.execute("SELECT seq, part, place FROM event WHERE root = ? ORDER BY seq", (root,)).fetchall()
        known = [seq for seq, part, place in rows if place < places[1][part]]
        first = min((seq for seq, part, place in rows if place >= places[1][part]), default=None)
        if first is None:
            return max(known, default=0), frozenset()
        return first - 1, frozenset(seq for seq in known if seq > first)

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = connect(self._path)
        return db


class _snapshot:
    """One state of the database for all that is read inside."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN")
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.execute("ROLLBACK")


def status_of(record: Told) -> dict[str, Any]:
    """The status document of a record; of one that says that nothing is known any more: state `unknown`.

    Raises ValueError, KeyError or TypeError if it is not as it must be.
    """
    if record.value is not None:
        document: dict[str, Any] = read_json(record.value)["document"]
        if not all(isinstance(document[name], str) for name in ("root", "@topic-id", "state")):
            raise TypeError("names are texts")
        return document
    root, slash, tid = record.entity.partition("/")
    if not slash:
        raise ValueError("not the name of an entity")
    return {"@topic-id": tid, "root": root, "state": "unknown", "since": None}


def mark_of(document: Mapping[str, Any]) -> str:
    """What an event is a change of."""
    return json.dumps([document["state"], document["since"], document.get("last_error")])


def tag(identity: str) -> str:
    """Tells the ids of one log from those of another."""
    return hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()


def name_of(own: str, places: Mapping[int, int]) -> str:
    """The id of a place: next offset of each partition, in order."""
    return own + "-" + ".".join(str(places[number]) for number in sorted(places))


def read_name(ident: str) -> tuple[str, list[int]] | None:
    """Tag and places of an id; None if it is none."""
    own, _, rest = ident.partition("-")
    texts = rest.split(".")
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        return None
    return own, [int(text) for text in texts]


def _place(db: sqlite3.Connection) -> tuple[str, dict[int, int]]:
    row = db.execute("SELECT text, partitions FROM identity").fetchone()
    if row is None:
        raise TooOld
    stored = dict(db.execute("SELECT part, next_offset FROM position"))
    return tag(row[0]), {part: stored.get(part, 0) for part in range(row[1])}

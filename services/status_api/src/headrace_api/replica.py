"""The read replica in SQLite: what a changelog says, plus the derived keys, plus how far it has been read.

A changelog holds *groups*: the mutations of one chunk and, last, its marker, all with the chunk's source offset in the
header `o` (streams.md 2.4). A group is appended whole, as one record batch or, rarely, as a transaction of several;
between these, batches of a late writer may stand. A group is applied whole, and in the same transaction as the position
before the first record that is not applied; so after kill -9 at any point the file is the state at some position, and
reading goes on there. What is read a second time then is known by its source offset.

A late writer (streams.md 5) can append a group that is older than what is known. The rules are those of a restore:
1. What is not newer than `contained` is contained already.
2. While a partition *catches up* (after each start, until its end), compaction may have taken parts of groups away, so
   per key the value with the highest source offset wins; `newest` keeps these offsets.
3. At the end everything up to the highest source offset is contained, and `newest` is forgotten. From then on groups
   are whole, and a group's mutations over any older state give the state at its source offset: rule 1 is enough.

What can never happen: a position without its data, a group applied in part, a reader that sees half a transaction.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headrace_api.sqlite_state import SqliteState, connect
from headrace_core.batching.keys import CLOCK
from headrace_core.batching.stage import COUNT
from headrace_core.changelog import MARKER_KEY
from headrace_core.registration.items import PRIMARY, sound
from headrace_core.registration.store import Store
from headrace_core.state import Overlay

FORMAT = "1"
"""Changes with what is stored or derived: another one builds the replica anew."""


class Change(NamedTuple):
    """One record of a changelog. `source` is the source offset of its chunk."""

    offset: int
    key: bytes
    value: bytes | None
    source: int


class Position(NamedTuple):
    """Next offset of the changelog, highest source offset seen, and up to which source offset all is contained."""

    offset: int = 0
    source: int = -1
    contained: int = -1


@dataclass
class Counts:
    """What the writer has done since the process began."""

    records: int = 0
    transactions: int = 0
    stale: int = 0
    damaged: int = 0
    rebuilt: int = 0


@dataclass
class Partition:
    """Groups that are not complete yet, by source offset, and where the partition stands.

    `live`: the end was reached.
    """

    position: Position
    live: bool = False
    groups: dict[int, list[Change]] = field(default_factory=dict)

    def add(self, change: Change) -> list[Change]:
        """Add a record; returns the changes of the groups that are complete with it.

        Live, a marker completes its group. Before, markers may have been compacted away: the next group does, too.
        """
        if change.key == MARKER_KEY:
            return [*self.groups.pop(change.source, ()), change]
        done: list[Change] = []
        if not self.live and change.source not in self.groups:
            done = self.rest()
        self.groups.setdefault(change.source, []).append(change)
        return done

    def rest(self) -> list[Change]:
        """The changes of all groups that are not complete, in order; there are none afterwards."""
        done = sorted((c for group in self.groups.values() for c in group), key=lambda c: c.offset)
        self.groups = {}
        return done

    def place(self, after: int) -> int:
        """Where reading goes on after a crash, if everything before `after` has been read."""
        return min([after, *(group[0].offset for group in self.groups.values())])


@dataclass(frozen=True)
class Kept:
    """What of a changelog is kept: families of primary keys, and how an item is written. The latter returns False for
    an item that cannot be read; it is left out then."""

    families: frozenset[bytes]
    write: Callable[[Overlay, bytes, bytes | None], bool]


def opened(path: Path, connect: Callable[[Path], sqlite3.Connection]) -> tuple[sqlite3.Connection, bool]:
    """The database; a damaged file is deleted and made anew (True). Raises sqlite3.OperationalError."""
    try:
        return connect(path), False
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        delete(path)
        return connect(path), True


class Replica:
    """The one writer of the database. Not for two threads at once."""

    def __init__(self, path: Path, kept: Kept | None = None) -> None:
        """Open or create the database; a damaged file is deleted, it is built anew. `kept` default: `REGISTRATION`."""
        self.path = path
        self._kept = kept or REGISTRATION
        self.counts = Counts()
        self.partitions: dict[int, Partition] = {}
        self._db, anew = opened(path, connect)
        self.counts.rebuilt += anew

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def begin(self, identity: str, partitions: int, *, max_offline_s: int) -> bool:
        """Start catching up with the changelog that `identity` names. True: the replica was emptied before.

        It is if it was made from another changelog, or is so old that tombstones may have been compacted away.
        """
        name, now = f"{FORMAT} {identity}", int(time.time())
        row = self._db.execute("SELECT text, partitions, synced_s FROM identity").fetchone()
        fits = row is not None and row[:2] == (name, partitions) and now - row[2] <= max_offline_s
        if not fits:
            self._empty(name, partitions, now)
        stored = {part: Position(*rest) for part, *rest in self._db.execute("SELECT * FROM position")}
        self.partitions = {part: Partition(stored.get(part, Position())) for part in range(partitions)}
        return not fits

    def _empty(self, name: str, partitions: int, now: int) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for table in ("item", "newest", "position", "identity"):
            self._db.execute(f"DELETE FROM {table}")
        self._db.execute("INSERT INTO identity VALUES (1, ?, ?, ?)", (name, partitions, now))
        self._db.execute("COMMIT")
        self.counts.rebuilt += 1

    def forget(self) -> None:
        """Make the next `begin` start from nothing."""
        self._db.execute("DELETE FROM identity")

    def synced(self) -> None:
        """All partitions are at their ends now."""
        self._db.execute("UPDATE identity SET synced_s = ?", (int(time.time()),))

    def apply(self, records: Iterable[tuple[int, Change]], ends: Iterable[tuple[int, int]] = ()) -> None:
        """Take records (partition, change) in order, and what is the end of a partition (partition, offset).

        One transaction; incomplete groups wait in memory for the rest, which comes in the next call.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            ready: dict[int, list[Change]] = {}
            read: dict[int, int] = {}
            for number, change in records:
                ready.setdefault(number, []).extend(self.partitions[number].add(change))
                read[number] = change.offset + 1
            for number, offset in ends:
                self._end(number, ready.pop(number, []), offset)
            for number, changes in ready.items():
                if changes:
                    self._write(number, changes, self.partitions[number].place(read[number]))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self.counts.transactions += 1

    def _end(self, number: int, changes: list[Change], offset: int) -> None:
        """The end of what is committed: all groups are whole there (rule 3)."""
        part = self.partitions[number]
        self._write(number, changes + part.rest(), offset)
        if not part.live:
            part.live = True
            self._db.execute("DELETE FROM newest WHERE part = ?", (number,))
            self._place(number, part.position._replace(contained=part.position.source))

    def _write(self, number: int, changes: list[Change], offset: int) -> None:
        part = self.partitions[number]
        base = SqliteState(self._db, number)
        overlay = Overlay(base)
        source, contained = part.position.source, part.position.contained
        newest: dict[bytes, int] = {}
        for change in changes:
            if change.source <= contained or (part.live and change.source < source):
                self.counts.stale += 1
                continue
            if not part.live and not self._is_newest(number, newest, change):
                continue
            source = max(source, change.source)
            if change.key[:1] in self._kept.families and not self._kept.write(overlay, change.key, change.value):
                self.counts.damaged += 1
        base.write(overlay.mutations)
        if newest:
            self._db.executemany(
                "INSERT OR REPLACE INTO newest VALUES (?, ?, ?)", [(number, k, s) for k, s in newest.items()]
            )
        self.counts.records += len(changes)
        self._place(number, Position(offset, source, source if part.live else contained))

    def _is_newest(self, number: int, newest: dict[bytes, int], change: Change) -> bool:
        """Rule 2; notes the source offset of the key."""
        known = newest.get(change.key)
        if known is None:
            row = self._db.execute(
                "SELECT source FROM newest WHERE part = ? AND k = ?", (number, change.key)
            ).fetchone()
            known = row[0] if row else -1
        if change.source < known:
            self.counts.stale += 1
            return False
        newest[change.key] = change.source
        return True

    def _place(self, number: int, position: Position) -> None:
        self.partitions[number].position = position
        self._db.execute("INSERT OR REPLACE INTO position VALUES (?, ?, ?, ?)", (number, *position))


def _registration(overlay: Overlay, key: bytes, value: bytes | None) -> bool:
    """A primary item with its derived keys; one that cannot be read is left out (registration.md 10)."""
    good = value is None or sound(key, value)
    Store(overlay).write(key, value if good else None)
    return good


def _counter(overlay: Overlay, key: bytes, value: bytes | None) -> bool:
    if value is None:
        overlay.delete(key)
    else:
        overlay.put(key, value)
    return True


REGISTRATION = Kept(frozenset(bytes([family]) for family in PRIMARY), _registration)
BATCHING = Kept(frozenset((COUNT, CLOCK)), _counter)
"""The counters of the batching stage and its clock; they are all that `BatchingStage.gauges` reads."""


def delete(path: Path) -> None:
    """Delete the database and its side files."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)

"""The State port on RocksDB: one database per stage and partition (`streams.md` 3).

The database holds what the changelog says plus the derived keys, and, under one key that no stage may use, the
*position*: marker (source offset, clock, epoch) and the changelog offset up to which the changelog is contained. Both
change in the same WriteBatch as the state, so that whatever survives a crash is a state that once was.

A database that cannot be opened is moved aside and rebuilt from the changelog, unless the error says that it is not
the database's fault (no space, no permission, locked). Opening reads little of it; so damage that is met later leaves a
note in its folder and ends the process, and the next start moves it aside. An iterator ends at a damaged block as if
the keys ended there; so its status is asked for at the end of each scan.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import structlog
from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict, ReadOptions, WriteBatch, WriteBufferManager

from headrace_core.changelog import Marker
from headrace_core.errors import HeadraceError

log = structlog.get_logger(__name__)

META_FAMILY = 0xFF
POSITION_KEY = b"\xff\xffposition"
SHARED_CACHE_BYTES = 64 * 1024 * 1024
WRITE_BUFFER_BYTES = 8 * 1024 * 1024
SHARED_BUFFER_BYTES = 48 * 1024 * 1024
WRITE_BATCH_RECORDS = 10_000
DAMAGED = "DAMAGED"
CORRUPTION = "Corruption"
NOT_ITS_FAULT = (
    "lock hold",
    "lock file",
    "no space",
    "disk quota",
    "permission denied",
    "read-only",
    "too many open files",
    "too large",
)


class DatabaseError(HeadraceError):
    """The database cannot be read or written. Ends the process; if it is damaged, the next start rebuilds it."""

    code = "database"


class Position(msgspec.Struct, frozen=True):
    """Marker of the state in a database, and the changelog offset to go on reading at."""

    marker: Marker = Marker()
    changelog: int = 0


@cache
def shared_cache() -> Cache:
    """The one block cache of all databases of the process (the default would be one of 2 GiB each)."""
    return Cache(SHARED_CACHE_BYTES)


@cache
def shared_buffers() -> WriteBufferManager:
    """What bounds the write buffers of all databases together; above it who writes next begins a new file.

    What they hold is taken from the room of the block cache, so that both together stay below its size.
    """
    return WriteBufferManager.new_write_buffer_manager_with_cache(SHARED_BUFFER_BYTES, False, shared_cache())


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_write_buffer_manager(shared_buffers())
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(256)
    table = BlockBasedOptions()
    table.set_block_cache(shared_cache())
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


def new_batch() -> WriteBatch:
    """An empty batch for `RocksState.write`; the last one of a key counts."""
    return WriteBatch(raw_mode=True)


def _damaged(error: Exception) -> bool:
    """Whether an error of opening is the database's own."""
    told = str(error)
    return told.startswith(CORRUPTION) or not any(words in told.lower() for words in NOT_ITS_FAULT)


def _walk(iterator: Any, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """From `start` on. A damaged block ends RocksDB's iterator as the end of the range does, and so it silently ends
    `items()` of rocksdict; only the status tells, which raises then."""
    iterator.seek(start)
    valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.next
    while valid():
        yield key(), value()
        step()
    iterator.status()


def read_copy(path: Path) -> tuple[dict[bytes, bytes], Position]:
    """All items of a database at one moment, and its position; whether a worker has it open or not, and without
    changing it (a secondary instance of RocksDB, whose own files go to a temporary folder).

    Raises FileNotFoundError if there is none, and what rocksdict raises (`Exception`) if it is damaged.
    """
    if not (path / "CURRENT").exists():
        raise FileNotFoundError(f"no database {path}")
    options = _options()
    options.create_if_missing(False)
    options.set_max_open_files(-1)  # a worker that compacts deletes files; open ones stay readable
    with tempfile.TemporaryDirectory() as folder:
        db = Rdict(str(path), options, access_type=AccessType.secondary(folder))
        try:
            items = dict(_walk(db.iter(), b""))
        finally:
            db.close()
    raw = items.pop(POSITION_KEY, None)
    return items, Position() if raw is None else msgspec.json.decode(raw, type=Position)


class RocksState:
    """State port over one RocksDB database. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        """Open or create. A damaged database is moved aside (`<name>.damaged-<ns>`) and an empty one created."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = self._open()
        try:
            self._position = self._read_position()
        except DatabaseError:
            self._db.close()
            if not (path / DAMAGED).exists():
                raise
            self._db = self._open()
            self._position = self._read_position()

    def _open(self) -> Rdict:
        if (self.path / DAMAGED).exists():
            self._move_aside((self.path / DAMAGED).read_text())
        try:
            return Rdict(str(self.path), _options())
        except Exception as error:
            if not self.path.exists() or not _damaged(error):
                raise
            self._move_aside(str(error))
            return Rdict(str(self.path), _options())

    def _move_aside(self, error: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        self.path.rename(aside)
        log.error("database damaged, rebuilding from the changelog", path=str(self.path), aside=str(aside), error=error)

    def _failed(self, error: Exception) -> DatabaseError:
        """What to raise instead; if the database is damaged, the next start is told."""
        if str(error).startswith(CORRUPTION):
            with contextlib.suppress(OSError):
                (self.path / DAMAGED).write_text(str(error))
        return DatabaseError(f"{self.path}: {error}")

    def _read_position(self) -> Position:
        raw = self.get(POSITION_KEY)
        return Position() if raw is None else msgspec.json.decode(raw, type=Position)

    @property
    def position(self) -> Position:
        """Marker and changelog offset of the state as it is on disk."""
        return self._position

    def get(self, key: bytes, /) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._failed(error) from error
        return value

    def put(self, key: bytes, value: bytes, /) -> None:
        self._db.put(key, value)

    def delete(self, key: bytes, /) -> None:
        self._db.delete(key)

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """`start <= key < stop` in byte order: the lower bound is a seek, the upper one is the iterator's own."""
        if start >= stop:
            return
        bound = ReadOptions()
        bound.set_iterate_upper_bound(stop)
        try:
            yield from _walk(self._db.iter(bound), start)
        except Exception as error:
            raise self._failed(error) from error

    def sweep(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As `scan`, for ranges of very many keys, a third of the time for each.

        rocksdict's `items` ends at a damaged block without a word. So from its last key on it is walked on, to nothing.
        """
        bound = ReadOptions()
        bound.set_iterate_upper_bound(stop)
        last = start
        try:
            for item in self._db.items(from_key=start, read_opt=bound):
                last = item[0]
                yield item
        except Exception as error:
            raise self._failed(error) from error
        yield from self.scan(last + b"\0", stop)

    def commit(self, mutations: Mapping[bytes, bytes | None], position: Position) -> None:
        """Write mutations (None = delete) and the position in one WriteBatch: all or nothing (`streams.md` 2.5)."""
        batch = new_batch()
        for key, value in mutations.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(POSITION_KEY, msgspec.json.encode(position))
        self.write(batch)
        self._position = position

    def load(self, items: Mapping[bytes, bytes | None]) -> None:
        """Write items in batches, without moving the position (restore)."""
        batch = new_batch()
        put, room = batch.put, WRITE_BATCH_RECORDS
        for key, value in items.items():
            if value is None:
                batch.delete(key)
            else:
                put(key, value)
            room -= 1
            if not room:
                self.write(batch)
                batch = new_batch()
                put, room = batch.put, WRITE_BATCH_RECORDS
        self.write(batch)

    def write(self, batch: WriteBatch) -> None:
        """Write a batch, all or nothing, without moving the position."""
        try:
            self._db.write(batch)
        except Exception as error:
            raise self._failed(error) from error

    def delete_families(self, families: Iterable[int]) -> None:
        """Delete all keys that begin with one of these bytes."""
        batch = new_batch()
        for family in families:
            start, stop = bytes([family]), bytes([family + 1])
            if next(iter(self.scan(start, stop)), None) is not None:
                batch.delete_range(start, stop)
        self.write(batch)

    def empty(self) -> None:
        """Begin again with an empty database and without a position."""
        self._db.close()
        shutil.rmtree(self.path)
        self._db = self._open()
        self._position = self._read_position()

    def close(self) -> None:
        """Close the database; the object is of no use afterwards."""
        self._db.close()

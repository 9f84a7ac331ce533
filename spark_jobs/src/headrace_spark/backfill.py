"""Backfill: a fixed range of the topics, once more into the sink (spark-writer.md 11).

Theory: name and range give a uuid, and the ledger keys of its chunks are (uuid, chunk number). Which offsets the range
has, and how it is cut, is recorded at the first start and never asked again, so a chunk is the same records in every
repeat, whatever the topics have got or lost meanwhile. A chunk is to the writer what a micro-batch is: same validation,
packing, sink and ledger; a chunk that the ledger has is left out.

A backfill is a job of its own, `<job>.<name>`: it counts for itself and does not know which documents the live job has
seen, so it brings back rows that the store has lost. Rows that are there and newer stay, by the version test.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

import msgspec

from headrace_core.errors import ConfigError
from headrace_spark.database import Database
from headrace_spark.ranges import Range, Span

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
_SPACE: Final = uuid.UUID("1f0fb3b4-54b7-4a0c-9d0a-6f9d7c0e8a52")
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS hr_backfill (run TEXT PRIMARY KEY, job TEXT NOT NULL, cut TEXT NOT NULL,"
    " started_at BIGINT NOT NULL)"
)


class Backfill(Range, frozen=True, kw_only=True):
    """The table `[backfill]` of the job file. `chunk_records` 0: as many offsets as the capacity takes in 20 s. With a
    lease store the resource is shared by `weight`, of which live jobs have 4; `alone`: there is no lease store, and no
    other job writes into the store meanwhile."""

    name: str = ""
    chunk_records: int = 0
    weight: int = 1
    max_share: float = 0.5
    alone: bool = False

    def check(self, table: str, topics: object) -> None:
        """See `Range`."""
        super().check(table, topics)  # type: ignore[arg-type]
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigError(f"{table}.name", "must be letters, digits, '.', '_' and '-'")
        if self.chunk_records < 0:
            raise ConfigError(f"{table}.chunk_records", "must be at least 0")
        if self.weight < 1:
            raise ConfigError(f"{table}.weight", "must be at least 1")
        if not 0.001 <= self.max_share <= 1:
            raise ConfigError(f"{table}.max_share", "must be from 0.001 to 1")

    def check_to_run(self, lease_store: str) -> None:
        """What must be there only if it is to run: a name, both sides of the range, and a shared capacity."""
        if not self.name:
            raise ConfigError("backfill.name", "must be given: with the range it says which chunks are done")
        for side in ("from", "to"):
            if getattr(self, f"{side}_time") is None and not getattr(self, f"{side}_offsets"):
                raise ConfigError(f"backfill.{side}_time", f"or backfill.{side}_offsets must be given")
        if not lease_store and not self.alone:
            raise ConfigError(
                "lease_store",
                "must be given, so that live jobs and the backfill keep to one capacity together;"
                " backfill.alone = true says that nobody else writes meanwhile",
            )

    def run_id(self, job: str) -> str:
        """The uuid of name and range."""
        sides = [self.from_time, self.to_time, sorted(self.from_offsets.items()), sorted(self.to_offsets.items())]
        return str(uuid.uuid5(_SPACE, msgspec.json.encode([job, self.name, sides]).decode()))


class Cut(msgspec.Struct, frozen=True):
    """What a backfill reads, and how many offsets a chunk has at most."""

    spans: list[Span]
    step: int


class Cuts:
    """The recorded cuts in the state store. All calls may raise `StateDown`."""

    def __init__(self, database: Database, job: str) -> None:
        self._database = database
        self._job = job

    def recorded(self, run_id: str) -> Cut | None:
        """The cut of the first start, if there was one."""
        with self._database.transaction() as at:
            at.make([_TABLE])
            found = at.rows("SELECT cut FROM hr_backfill WHERE run = ?", (run_id,))
        return msgspec.json.decode(found[0][0], type=Cut) if found else None

    def record(self, run_id: str, cut: Cut, now_ms: int) -> Cut:
        """Record the cut, unless another start was quicker; returns the one that holds."""
        with self._database.transaction() as at:
            at.run(
                "INSERT INTO hr_backfill (run, job, cut, started_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (run_id, self._job, msgspec.json.encode(cut).decode(), now_ms),
            )
            found = at.rows("SELECT cut FROM hr_backfill WHERE run = ?", (run_id,))
        return msgspec.json.decode(found[0][0], type=Cut)

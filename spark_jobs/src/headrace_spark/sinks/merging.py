"""The driver's side of the staged path (spark-writer.md 7, steps 3 to 5), inside a transaction of its own.

Theory: of the staged rows of the accepted attempts one for each key, the one with the highest version, gets a number in
the order of the keys. A slice is a range of numbers, so a range of keys; slices are merged in order, so two jobs that
merge the same keys lock them in the same order. A slice that a constraint refuses is undone to its savepoint and cut in
halves, until the guilty rows stand alone. Behind a guilty row there may be an older one of its key that is valid: it
takes the number then and is merged in its place, as if the two had come one after the other.

Rows without a key (`Append`) are numbered as they stand in the log and inserted, each; of a document that is staged
twice only those from its first place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg

from headrace_spark.database import Database, Transaction
from headrace_spark.sinks.port import Batch, Outcome
from headrace_spark.sinks.staging import StagingLost, staging_name
from headrace_spark.transforms.costs import Cost
from headrace_spark.transforms.dead_letters import Guilty
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import MAX_ROW_BYTES, Bounds

_WINNERS: Final = """
CREATE TEMPORARY TABLE hr_merge ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY source, metric, time_ms) AS n, w.* FROM (
  SELECT DISTINCT ON (source, metric, time_ms) source, metric, time_ms, value, boolean, closed_at, batch
  FROM {staging} WHERE query_id = ? AND batch_id = ? AND attempt = ANY(?) AND batch = ANY(?)
  ORDER BY source, metric, time_ms, closed_at DESC, batch DESC, topic, kafka_partition, kafka_offset) AS w"""
_PLACE: Final = """
SELECT s.topic, s.kafka_partition, s.kafka_offset, s.metric, s.time_ms, m.value, m.boolean
FROM {staging} AS s JOIN hr_merge AS m USING (source, metric, time_ms, closed_at, batch)
WHERE m.n = ? AND s.query_id = ? AND s.batch_id = ? AND s.attempt = ANY(?)
ORDER BY s.topic, s.kafka_partition, s.kafka_offset LIMIT 1"""
_OLDER: Final = """
UPDATE hr_merge AS m SET value = w.value, boolean = w.boolean, closed_at = w.closed_at, batch = w.batch FROM (
  SELECT k.n, s.value, s.boolean, s.closed_at, s.batch
  FROM {staging} AS s JOIN hr_merge AS k USING (source, metric, time_ms)
  WHERE k.n = ? AND s.query_id = ? AND s.batch_id = ? AND s.attempt = ANY(?) AND s.batch = ANY(?)
    AND (s.closed_at, s.batch) < (k.closed_at, k.batch)
  ORDER BY s.closed_at DESC, s.batch DESC, s.topic, s.kafka_partition, s.kafka_offset LIMIT 1) AS w
WHERE m.n = w.n"""
_ALL: Final = """
CREATE TEMPORARY TABLE hr_merge ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY topic, kafka_partition, kafka_offset, time_ms, metric, value) AS n,
  source, metric, time_ms, value, boolean, closed_at, batch
FROM {staging} JOIN unnest(?::text[], ?::integer[], ?::bigint[]) AS fresh(topic, kafka_partition, kafka_offset)
  USING (topic, kafka_partition, kafka_offset)
WHERE query_id = ? AND batch_id = ? AND attempt = ANY(?)"""
_APPEND: Final = """
INSERT INTO {table} (source, metric, time_ms, value, boolean, closed_at, batch)
SELECT source, metric, time_ms, value, boolean, closed_at, batch FROM hr_merge WHERE n BETWEEN ? AND ? ORDER BY n"""
_HASHED: Final = "SET LOCAL enable_nestloop = off"
"""The planner takes what is staged for a row or two, whatever the statistics say of micro-batches before."""
_MEMORY: Final = "SET LOCAL work_mem = '64MB'"
"""For one sort of a micro-batch's rows, of which a million need a file all the same."""
_MERGE: Final = """
WITH merged AS (
  INSERT INTO {table} AS t (source, metric, time_ms, value, boolean, closed_at, batch)
  SELECT source, metric, time_ms, value, boolean, closed_at, batch FROM hr_merge WHERE n BETWEEN ? AND ? ORDER BY n
  ON CONFLICT (source, metric, time_ms) DO UPDATE
  SET value = excluded.value, boolean = excluded.boolean, closed_at = excluded.closed_at, batch = excluded.batch
  WHERE (t.closed_at, t.batch) < (excluded.closed_at, excluded.batch)
  RETURNING (t.xmax = 0) AS new)
SELECT count(*) FILTER (WHERE new), count(*) FILTER (WHERE NOT new) FROM merged"""


Operation = Callable[[int, int, Callable[[], Outcome]], Outcome]


class Merge:
    """The merge of one micro-batch in the transaction `at`. `operation(cost, rows, work)` lets a slice out when the
    capacity has room; `cost` prices it, within `bounds`."""

    def __init__(
        self, at: Transaction, table: str, batch: Batch, cost: Cost, bounds: Bounds, operation: Operation
    ) -> None:
        self._at = at
        self._table = f'"{table}"'
        self._staging = f'"{staging_name(table)}"'
        self._batch = batch
        self._cost = cost
        self._bounds = bounds
        self._operation = operation
        self._attempts: list[str] = []
        self._documents: list[str] = []
        self._light = not cost.per_kib and bounds.rows * MAX_ROW_BYTES <= bounds.size
        """No slice is too large, whatever is in it, and its bytes cost nothing."""
        self.slices = 0
        self.guilty: list[Guilty] = []

    def check(self, attempts: Sequence[str], rows: int) -> None:
        """Raise `StagingLost` unless exactly the reported rows of the accepted attempts are there."""
        found = self._at.rows(
            f"SELECT count(*) FROM {self._staging} WHERE query_id = ? AND batch_id = ? AND attempt = ANY(?)",
            (self._batch.query_id, self._batch.batch_id, list(attempts)),
        )[0][0]
        if found != rows:
            raise StagingLost(
                f"micro-batch {self._batch.batch_id}: {found} rows are staged, but the tasks reported {rows}"
            )

    def choose(self, attempts: Sequence[str], fresh: Sequence[Report]) -> int:
        """Number the rows to merge, only those of these records; returns how many there are."""
        self._attempts = list(attempts)
        self._documents = sorted(one.taken.id for one in fresh if one.taken is not None)
        self._at.run(_MEMORY)
        total = self._number(fresh)
        self._at.run("CREATE UNIQUE INDEX ON hr_merge (n)")
        return total

    def _number(self, _: Sequence[Report]) -> int:
        key = (self._batch.query_id, self._batch.batch_id, self._attempts, self._documents)
        return self._at.run(_WINNERS.format(staging=self._staging), key)

    def merge(self, total: int) -> Outcome:
        """Merge rows 1 to `total` in slices; rows that the store refuses are in `guilty` then."""
        outcome, size = Outcome(), self._bounds.rows
        for low in range(1, total + 1, size):
            for part in self._part(low, min(low + size - 1, total)):
                outcome += part
        return outcome

    def clean(self) -> int:
        """Delete all that was staged for this micro-batch, by whatever attempt; returns how many rows."""
        return self._at.run(
            f"DELETE FROM {self._staging} WHERE query_id = ? AND batch_id = ?",
            (self._batch.query_id, self._batch.batch_id),
        )

    def _part(self, low: int, high: int) -> Iterator[Outcome]:
        size = self._size(low, high)
        cost = self._cost(high - low + 1, size)
        if low < high and (cost > self._bounds.capacity or size > self._bounds.size):
            yield from self._halves(low, high)
            return
        done = self._tried(low, high, cost)
        while isinstance(done, psycopg.Error):
            if low < high:
                yield from self._halves(low, high)
                return
            self.guilty.append(self._found(low, done))
            if not self._older(low):
                return
            done = self._tried(low, low, self._cost(1, self._size(low, low)))
        yield done

    def _tried(self, low: int, high: int, cost: int) -> Outcome | psycopg.Error:
        """One operation; why the store refuses it, if it does. Any other error ends the transaction."""
        self._at.run("SAVEPOINT slice")
        done: Outcome | psycopg.Error
        try:
            done = self._operation(cost, high - low + 1, lambda: self._upsert(low, high))
        except (psycopg.IntegrityError, psycopg.DataError) as error:
            self._at.run("ROLLBACK TO SAVEPOINT slice")
            done = error
        self._at.run("RELEASE SAVEPOINT slice")
        return done

    def _older(self, number: int) -> bool:
        """Give the number to the next lower version of its key, if there is one."""
        key = (number, self._batch.query_id, self._batch.batch_id, self._attempts, self._documents)
        return bool(self._at.run(_OLDER.format(staging=self._staging), key))

    def _size(self, low: int, high: int) -> int:
        """Bytes of the values of a range, as `Row.size`; 0 if nobody needs to know."""
        if self._light:
            return 0
        query = "SELECT sum(octet_length(source) + octet_length(metric) + octet_length(batch) + 25) FROM hr_merge"
        return int(self._at.rows(f"{query} WHERE n BETWEEN ? AND ?", (low, high))[0][0])

    def _halves(self, low: int, high: int) -> Iterator[Outcome]:
        middle = (low + high) // 2
        yield from self._part(low, middle)
        yield from self._part(middle + 1, high)

    def _upsert(self, low: int, high: int) -> Outcome:
        self.slices += 1
        inserted, replaced = self._at.rows(_MERGE.format(table=self._table), (low, high))[0]
        return Outcome(inserted, replaced, high - low + 1 - inserted - replaced)

    def _found(self, number: int, error: psycopg.Error) -> Guilty:
        key = (number, self._batch.query_id, self._batch.batch_id, self._attempts)
        topic, partition, offset, metric, time_ms, *exact = self._at.rows(_PLACE.format(staging=self._staging), key)[0]
        says = error.diag.message_primary or str(error)
        return Guilty((topic, partition, offset), metric, time_ms, says, self._exact(*exact))

    def _exact(self, _value: float, _boolean: bool) -> tuple[float, bool] | None:
        """A row is known by its key."""
        return None


class Append(Merge):
    """For a table without a key: each row is inserted."""

    def _number(self, fresh: Sequence[Report]) -> int:
        self._at.run(_HASHED)
        places = [list(column) for column in zip(*(one.place for one in fresh), strict=True)]
        key = (*places, self._batch.query_id, self._batch.batch_id, self._attempts)
        return self._at.run(_ALL.format(staging=self._staging), key)

    def _exact(self, value: float, boolean: bool) -> tuple[float, bool] | None:
        return value, boolean

    def _older(self, _: int) -> bool:
        """Every row goes out by itself."""
        return False

    def _upsert(self, low: int, high: int) -> Outcome:
        self.slices += 1
        inserted = self._at.run(_APPEND.format(table=self._table), (low, high))
        return Outcome(inserted, 0, high - low + 1 - inserted)


def tidy(database: Database, table: str) -> None:
    """Give the room of deleted rows back to the staging table, which is read whole by every micro-batch. Harmless for
    others who use it. Raises `StateDown`."""
    database.once(f'VACUUM (SKIP_LOCKED) "{staging_name(table)}"')


def sweep(at: Transaction, table: str, query_id: str, before: int | None = None) -> int:
    """Delete what dead attempts left: of this query, of micro-batches below `before` (None: all of them), and of
    queries that no job has any more. Returns how many rows."""
    staging = f'"{staging_name(table)}"'
    limit, values = ("", ()) if before is None else (" AND batch_id < ?", (before,))
    own = at.run(f"DELETE FROM {staging} WHERE query_id = ?{limit}", (query_id, *values))
    return own + at.run(f"DELETE FROM {staging} WHERE query_id NOT IN (SELECT query_id FROM hr_query)")

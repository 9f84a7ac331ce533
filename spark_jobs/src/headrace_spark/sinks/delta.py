"""A Delta Lake table as a sink, by the library `deltalake` (spark-writer.md 7, "Delta Lake").

Theory: a request is one commit, a MERGE by row id in which a row replaces another only with a higher version, so a
repeat has no effect. The last commit of a micro-batch carries an application transaction, the query id with the batch
id as its version. The library records it, but does not skip what is repeated. So the table's version for the query id
is read first, and again after a commit that conflicts: if it is >= the batch id, the whole micro-batch is there.

A micro-batch may be more than the capacity takes at once; then it is several commits. Every commit is marked with the
request's id, and the table's history tells by the marks which requests are there, and how many rows each inserted and
replaced. So nothing is merged or paid twice, and the numbers are exact over kill -9 between commit and ledger; a commit
whose answer was lost is looked for there before it is tried again. If the history was cleaned in between, requests
before the last are merged again, which changes no row, and what is not known counts as repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError

from headrace_core.errors import ConfigError
from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.transforms.rows import Request, Row

COLUMNS: Final = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("boolean", pa.bool_(), nullable=False),
        pa.field("closed_at", pa.int64(), nullable=False),
        pa.field("batch", pa.string(), nullable=False),
    ]
)
_SAME: Final = "t.source = s.source AND t.metric = s.metric AND t.time_ms = s.time_ms"
_NEWER: Final = "t.closed_at < s.closed_at OR (t.closed_at = s.closed_at AND t.batch < s.batch)"
_NAME: Final = "hr_request"
T = TypeVar("T")
_LOOK_BACK: Final = 1000
"""Commits of the history that are searched for a request."""


class DeltaSink:
    """Implements `Sink`. `uri` is an absolute path or what the library takes; it reads secrets of object stores from
    the environment. Raises `ConfigError` if the table is another one than this sink's."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._table: DeltaTable | None = None
        self._planned: list[Request] = []
        self._finished: Batch | None = None
        self._doubtful: set[str] = set()
        """Requests whose commit may be there, as its answer was lost."""

    def prepare(self) -> None:
        self._guarded(self._prepare)

    def plan(self, requests: Sequence[Request]) -> None:
        """The requests of the micro-batch that comes next, in order; the last one ends it."""
        self._planned = list(requests)
        self._doubtful.clear()

    def outcomes(self, batch: Batch) -> dict[str, Outcome]:
        """Of the planned requests."""
        return self._guarded(lambda: self._outcomes(batch))

    def write(self, batch: Batch, request: Request) -> Outcome:
        return self._guarded(lambda: self._write(batch, request))

    def forget(self, batch: Batch) -> None:
        """What a commit carries stays in the table's log."""
        self._finished = batch

    def close(self) -> None:
        self._table = None

    def _prepare(self) -> None:
        table = DeltaTable.create(self._uri, schema=COLUMNS, mode="ignore", name="headrace measurements")
        there = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
        wrong = [field.name for field in COLUMNS if there.get(field.name) not in _kinds(field.type)]
        if wrong:
            raise ConfigError("sink", f"{self._uri} has no columns for {', '.join(wrong)}, or of another type")

    def _outcomes(self, batch: Batch) -> dict[str, Outcome]:
        """The history is only read where an earlier process may have left a part of this micro-batch."""
        table = self._read()
        whole = _whole(table, batch)
        own = self._finished == Batch(batch.query_id, batch.batch_id - 1)
        if not whole and (own or len(self._planned) < 2):
            return {}
        told = _history(table, batch)
        wanted = self._planned if whole else [one for one in self._planned if one.id in told]
        return {one.id: told.get(one.id, _repeated(one)) for one in wanted}

    def _write(self, batch: Batch, request: Request) -> Outcome:
        table = self._read()
        if _whole(table, batch):
            return _history(table, batch).get(request.id, _repeated(request))
        told = _history(table, batch) if request.id in self._doubtful else {}
        if request.id in told:
            return told[request.id]
        self._doubtful.add(request.id)
        outcome = self._committed(table, batch, request)
        self._doubtful.discard(request.id)
        return outcome

    def _committed(self, table: DeltaTable, batch: Batch, request: Request) -> Outcome:
        try:
            return self._merge(table, batch, request)
        except CommitFailedError as error:  # another writer was first; perhaps with this very request
            table = self._read()
            told = _history(table, batch)
            if request.id in told or _whole(table, batch):
                return told.get(request.id, _repeated(request))
            raise SinkDown(f"a commit conflicted: {error}") from error

    def _merge(self, table: DeltaTable, batch: Batch, request: Request) -> Outcome:
        times = [row.time_ms for row in request.rows]
        bounds = f"t.time_ms >= {min(times)} AND t.time_ms <= {max(times)}"  # files without these times are not read
        last = request.id == self._planned[-1].id
        merge = table.merge(
            pa.RecordBatch.from_pylist([_plain(row) for row in request.rows], schema=COLUMNS),
            predicate=f"{_SAME} AND {bounds}",
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(
                custom_metadata={_NAME: _mark(batch, request.id)},
                max_commit_retries=0,  # a conflict is looked at here, not tried again in the library
                app_transactions=[Transaction(batch.query_id, batch.batch_id)] if last else None,
            ),
        )
        numbers = merge.when_matched_update_all(_NEWER).when_not_matched_insert_all().execute()
        return _outcome(numbers, len(request.rows))

    def _read(self) -> DeltaTable:
        """The table as it is now."""
        if self._table is None:
            self._table = DeltaTable(self._uri)
        else:
            self._table.update_incremental()
        return self._table

    def _guarded(self, work: Callable[[], T]) -> T:
        """What the library raises, as what the job does about it."""
        try:
            return work()
        except SchemaMismatchError as error:
            raise ConfigError("sink", f"{self._uri}: {error}") from error
        except (DeltaError, OSError) as error:
            self.close()
            raise SinkDown(f"{self._uri}: {error}") from error


def _whole(table: DeltaTable, batch: Batch) -> bool:
    """Whether the last commit of the micro-batch, or of a later one, is there."""
    version = table.transaction_version(batch.query_id)
    return version is not None and version >= batch.batch_id


def _repeated(request: Request) -> Outcome:
    return Outcome(repeats=len(request.rows))


def _history(table: DeltaTable, batch: Batch) -> dict[str, Outcome]:
    """What the commits of this micro-batch did, as far as the table's log tells."""
    prefix = _mark(batch, "")
    found: dict[str, Outcome] = {}
    for one in table.history(_LOOK_BACK):
        mark = str(one.get(_NAME, ""))
        numbers = one.get("operationMetrics") or {}
        if mark.startswith(prefix) and "num_source_rows" in numbers:
            found[mark.removeprefix(prefix)] = _outcome(numbers, int(numbers["num_source_rows"]))
    return found


def _outcome(numbers: dict[str, Any], rows: int) -> Outcome:
    inserted, replaced = (int(numbers[f"num_target_rows_{what}"]) for what in ("inserted", "updated"))
    return Outcome(inserted, replaced, rows - inserted - replaced)


def _mark(batch: Batch, request_id: str) -> str:
    return f"{batch.query_id}:{batch.batch_id}:{request_id}"


def _plain(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS.names}


def _kinds(kind: pa.DataType) -> list[pa.DataType]:
    """Texts come back in several layouts."""
    return [pa.string(), pa.large_string(), pa.string_view()] if kind == pa.string() else [kind]

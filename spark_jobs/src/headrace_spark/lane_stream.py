"""A lane in stream mode: what it keeps from one micro-batch to the next, and what a task makes of it (packing.md 6.4).

Theory: a task steps each lane once a micro-batch, as a pure function of the lane's memory, the lane's records, the
documents seen before and the timestamp of the micro-batch. Memory is in Spark's state store and the timestamp in its
checkpoint, so a repeat of the micro-batch makes the same requests under the same ids. The driver sends them; what was
sent is recorded as in backlog mode (`lanes.py`).

A request is named by the offsets of the latest micro-batch that had records of the lane, and its place in it. Requests
that go out later without new records, because they waited long enough, count on in that place; so no two of a lane
have one id.

A document is a repeat if an earlier micro-batch of this query took it. What the micro-batch itself took does not count:
it may be repeated after its ledger row was written, and must then do the same again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from headrace_core.packing.ids import batch_id
from headrace_core.packing.lane import Lane, LaneState
from headrace_core.packing.settings import PackingSettings
from headrace_spark.counts import Counts
from headrace_spark.database import Database, Transaction
from headrace_spark.plan import headers, refused, sift
from headrace_spark.transforms.dead_letters import DeadLetter
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import Headers, Row, rows

_FIELDS: Final = len(Row.__struct_fields__)


class LaneWork(msgspec.Struct, frozen=True):
    """What a task must know of the job."""

    job: str
    state_dsn: str
    max: int
    lateness_ms: int
    linger_ms: int
    seen_retention_ms: int


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """What a lane keeps. `first` and `last` are the offsets of its latest micro-batch with records, `index` is the
    place of the next request in it."""

    lane: LaneState = LaneState()
    first: int = -1
    last: int = -1
    index: int = 0


class Packet(msgspec.Struct, frozen=True):
    """The rows of one request and its id, and the carried headers of their documents."""

    id: str
    rows: list[Row]
    headers: Headers = {}


class LaneStep(msgspec.Struct, frozen=True):
    """What a micro-batch means for one lane. `refused` of `judged` rows count for the circuit breaker; `waiting` rows
    are kept; `taken` rows came now, of which the source that has most has `largest`;
    the other numbers are of the rows that were packed (packing.md 7); those in requests waited for
    `closing_ms` in sum."""

    topic: str
    partition: int
    first: int
    now_ms: int
    refused: int
    judged: int
    counts: Counts
    letters: list[DeadLetter]
    ids: list[str]
    packets: list[Packet]
    waiting: int
    late: int
    cut: int
    unsplittable: int
    untimed: int
    closing_ms: int = 0
    taken: int = 0
    largest: int = 0


class Stepped(msgspec.Struct, frozen=True):
    """`due_ms`: when the lane must be stepped again without new records; None: never."""

    memory: Memory
    step: LaneStep
    due_ms: int | None


def step(
    work: LaneWork,
    place: tuple[str, int],
    memory: Memory,
    reports: Sequence[Report],
    seen: set[str],
    now_ms: int,
) -> Stepped:
    """Step a lane. `place` is topic and partition, `now_ms` the timestamp of the micro-batch."""
    inside = sorted(reports, key=lambda one: one.offset)
    if inside:
        memory = Memory(memory.lane, inside[0].offset, inside[-1].offset, 0)
    sifted = sift(inside, seen, work.job)
    found = [row for one in sifted.fresh if one.taken is not None for row in rows(one.taken)]
    lane = Lane(PackingSettings(max=work.max, mode="stream", lateness_ms=work.lateness_ms, linger_ms=work.linger_ms))
    ids, times = [f"{row.source}${row.metric}" for row in found], [row.time_ms for row in found]
    known = headers(sifted.fresh)
    packed = lane.step(memory.lane, ids, times, [_packed(row, known.get(row.batch)) for row in found], now_ms=now_ms)
    name = f"{place[0]}-{place[1]}"
    packets = [
        _packet(batch_id(name, memory.first, memory.last, memory.index + at), batch.values)
        for at, batch in enumerate(packed.batches)
    ]
    state, numbers = packed.state, packed.counts
    done = LaneStep(
        *place,
        memory.first,
        now_ms,
        *refused(inside),
        sifted.counts,
        sifted.letters,
        sorted(sifted.ids),
        packets,
        len(state.pending) + len(state.open),
        numbers.late,
        numbers.cut,
        numbers.unsplittable,
        numbers.untimed,
        sum(now_ms - seen_ms for batch in packed.batches for seen_ms in batch.seen_ms),
        len(found),
        max(Counter(row.source for row in found).values(), default=0),
    )
    return Stepped(Memory(state, memory.first, memory.last, memory.index + len(packets)), done, packed.due_ms)


def _packed(row: Row, headers: Mapping[str, str] | None) -> bytes:
    """A row as it waits, with its headers behind it if there are any."""
    return msgspec.msgpack.encode((*msgspec.structs.astuple(row), *filter(None, [headers])))


def _packet(name: str, values: Iterable[bytes]) -> Packet:
    rows, known = list[Row](), Headers()
    for value in values:
        found = msgspec.msgpack.decode(value)
        rows.append(Row(*found[:_FIELDS]))
        if len(found) > _FIELDS:
            known[rows[-1].batch] = found[_FIELDS]
    return Packet(name, rows, known)


_SEEN: Final = (
    "CREATE TABLE IF NOT EXISTS hr_lane_seen (query_id TEXT NOT NULL, id TEXT NOT NULL, batch_id BIGINT NOT NULL,"
    " seen_at BIGINT NOT NULL, PRIMARY KEY (query_id, id))"
)
_CHUNK: Final = 500


class SeenDocuments:
    """The documents that earlier micro-batches took. `seen_at` is the timestamp of the micro-batch, so that forgetting
    is a function of the checkpoint too. They belong to the query: a new one has none of the rows that wait in the
    memory of the old one, and takes every document again. All calls may raise `StateDown`."""

    def __init__(self, database: Database, retention_ms: int) -> None:
        self._database = database
        self._retention_ms = retention_ms

    def prepare(self) -> None:
        """Create what is missing; harmless when repeated."""
        with self._database.transaction() as at:
            at.make([_SEEN])

    def before(self, query_id: str, batch_id: int, ids: Collection[str], now_ms: int) -> set[str]:
        """Those of `ids` that a micro-batch before this one took, within the retention."""
        wanted, found = sorted(ids), set[str]()
        if not wanted:
            return found
        with self._database.transaction() as at:
            for start in range(0, len(wanted), _CHUNK):
                part = wanted[start : start + _CHUNK]
                query = (
                    "SELECT id FROM hr_lane_seen WHERE query_id = ? AND batch_id < ? AND seen_at >= ?"
                    f" AND id IN ({', '.join('?' * len(part))})"
                )
                values = (query_id, batch_id, now_ms - self._retention_ms, *part)
                found |= {row[0] for row in at.rows(query, values)}
        return found

    def record(self, at: Transaction, query_id: str, batch_id: int, ids: Collection[str], now_ms: int) -> None:
        """This micro-batch took these; in the transaction that writes its ledger row."""
        at.many(
            "INSERT INTO hr_lane_seen (query_id, id, batch_id, seen_at) VALUES (?, ?, ?, ?) ON CONFLICT (query_id, id)"
            " DO UPDATE SET batch_id = excluded.batch_id, seen_at = excluded.seen_at",
            [(query_id, one, batch_id, now_ms) for one in sorted(ids)],
        )
        old = now_ms - self._retention_ms
        at.run("DELETE FROM hr_lane_seen WHERE query_id = ? AND seen_at < ?", (query_id, old))

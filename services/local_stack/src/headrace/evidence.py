"""What a running stack has done between two moments, counted as independently of its own counters as possible.

| what | where it is counted |
|---|---|
| raw, routed, batches, dead letters, outbound | by reading the topics; a repeat is known by its `id` header |
| rows of each job, dispatches of all jobs | in SQLite, in the tables themselves |
| members and rows that a job says it took | its totals in SQLite, committed with the rows |
| discarded, pending, open members | gauges of the stages, which are part of their state |

A `Mark` says where everything stood; taken before a run and after it, when nothing moves. State, topics and counters
outlive a run, so a run's numbers are differences between two marks. Nothing here uses the bridge's counters: they begin
anew with each process.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.endpoints import ARCHIVE, WRITER, Endpoints, Job
from headrace.publisher import digest
from headrace_core.errors import HeadraceError

TOPICS = ("raw", "routed", "batches", "dead-letter", "outbound")
NOT_MESSAGES = (b"tick", b"flush", b"request")
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')
Ends = dict[tuple[str, int], int]


class Unreachable(HeadraceError):
    """A part of the stack does not answer."""

    code = "unreachable"
    retry = True


@dataclass(frozen=True)
class Written:
    """What a job has written. `totals`: what it says, by name; `rows`: what is in its table."""

    totals: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0


@dataclass(frozen=True)
class Mark:
    """Where a stack stands. `ends`: next offset by logical topic and partition; `gauges`: by stage and name, summed
    over the partitions; `totals` and `rows`: of the writer; `archived`: of the second job, None where there is none;
    `dispatch`: the last row of `hr_dispatch`, which all jobs share."""

    ends: Ends = field(default_factory=dict)
    gauges: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    dispatch: int = 0
    archived: Written | None = None

    def records(self, topic: str) -> int:
        """Records ever written to a topic."""
        return sum(end for (name, _), end in self.ends.items() if name == topic)


@dataclass
class Found:
    """What the topics hold between two marks. `letters` by stage and reason; `opened`: topic and event time of each
    batch's opening message, and when the batch was appended (ms)."""

    raw: int = 0
    ticks: int = 0
    requests: int = 0
    messages: Counter[bytes] = field(default_factory=Counter)
    routed: int = 0
    data: int = 0
    measurements: int = 0
    batches: int = 0
    members: int = 0
    leaves: int = 0
    letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    outbound: Counter[bytes] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    opened: list[tuple[str, int, int]] = field(default_factory=list)


class Batched(msgspec.Struct):
    """A member of a batch document."""

    type: str
    time: int
    received: int
    value: Any


class Document(msgspec.Struct):
    """A batch document (batching.md 9)."""

    id: str
    source: str
    time: int
    opened_at: int
    close: str
    members: list[Batched]


class Letter(msgspec.Struct):
    """What is read of a dead letter."""

    reason: str


def mark(at: Endpoints) -> Mark:
    """Where the stack stands now. Raises Unreachable."""
    writer = stored(at.database)
    archived = stored(at.database, ARCHIVE) if ARCHIVE in at.jobs else None
    return Mark(ends(at), gauges(at.streams_url), writer.totals, writer.rows, last_dispatch(at.database), archived)


def ends(at: Endpoints) -> Ends:
    """Next offset by logical topic and partition. Raises Unreachable."""
    with closing(Offsets(at)) as offsets:
        return offsets.ends()


class Offsets:
    """Asks for offsets again and again over one connection. `close` ends it."""

    def __init__(self, at: Endpoints) -> None:
        self._at = at
        self._consumer = reader(at.kafka, f"{at.prefix}bridge.outbound")

    def ends(self) -> Ends:
        """Next offset by logical topic and partition; topics that are not there are left out. Raises Unreachable."""
        return self._watermarks(1)

    def begins(self) -> Ends:
        """First offset that is still there, likewise. Raises Unreachable."""
        return self._watermarks(0)

    def published(self) -> Ends:
        """Next offset of `outbound` that the bridge has still to publish, by partition. Raises Unreachable."""
        topic = self._at.prefix + "outbound"
        try:
            known = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
            committed = self._consumer.committed([TopicPartition(topic, p) for p in known], timeout=10)
        except KafkaException as error:
            raise Unreachable(f"Kafka at {self._at.kafka}: {error}") from error
        return {("outbound", at.partition): max(0, at.offset) for at in committed}

    def close(self) -> None:
        """Give the connection back."""
        self._consumer.close()

    def _watermarks(self, which: int) -> Ends:
        prefix = self._at.prefix
        try:
            known = self._consumer.list_topics(timeout=10).topics
            places = [(t, p) for t in TOPICS if prefix + t in known for p in known[prefix + t].partitions]
            ask = self._consumer.get_watermark_offsets
            return {(t, p): ask(TopicPartition(prefix + t, p), timeout=10)[which] for t, p in places}
        except KafkaException as error:
            raise Unreachable(f"Kafka at {self._at.kafka}: {error}") from error


def samples(url: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each Prometheus sample at `url`/metrics. Raises Unreachable."""
    try:
        text = httpx.get(f"{url}/metrics", timeout=10).raise_for_status().text
    except httpx.HTTPError as error:
        raise Unreachable(f"{url}: {error}") from error
    for line in text.splitlines():
        if found := SAMPLE.match(line):
            yield found[1], dict(LABEL.findall(found[2] or "")), float(found[3])


def gauges(streams_url: str) -> dict[str, dict[str, int]]:
    """Gauges of the stages by stage and name, summed over the partitions; the stage's `lag` is among them. Raises
    Unreachable."""
    found: dict[str, Counter[str]] = {}
    for name, labels, value in samples(streams_url):
        if name in ("headrace_stage", "headrace_stage_lag"):
            found.setdefault(labels["stage"], Counter())[labels.get("name", "lag")] += int(value)
    return {stage: dict(counts) for stage, counts in found.items()}


def stored(database: Path, job: Job = WRITER) -> Written:
    """A job's totals, and the number of rows in its table; nothing before it first ran."""
    with _tables(database) as (db, tables):
        if db is None or not {"hr_total", job.table} <= tables:
            return Written()
        totals = dict(db.execute("SELECT name, value FROM hr_total WHERE job = ?", (job.name,)))
        return Written(totals, db.execute(f'SELECT count(*) FROM "{job.table}"').fetchone()[0])


def last_dispatch(database: Path) -> int:
    """The last row of `hr_dispatch`, 0 before there is any."""
    with _tables(database) as (db, tables):
        if db is None or "hr_dispatch" not in tables:
            return 0
        return int(db.execute("SELECT coalesce(max(rowid), 0) FROM hr_dispatch").fetchone()[0])


def dispatches(database: Path, after: int) -> list[tuple[int, int]]:
    """(monotonic ns, cost) of the requests of all jobs after row `after`."""
    with _tables(database) as (db, tables):
        if db is None or "hr_dispatch" not in tables:
            return []
        return db.execute("SELECT at_ns, cost FROM hr_dispatch WHERE rowid > ?", (after,)).fetchall()


def read(at: Endpoints, since: Ends, until: Ends) -> Found:
    """Read the topics from one mark to another. Raises Unreachable."""

    def between(topic: str) -> Iterator[Any]:
        wanted = {p: (since.get((topic, p), 0), end) for (t, p), end in until.items() if t == topic}
        return records(at.kafka, at.prefix + topic, wanted)

    return count({topic: between(topic) for topic in TOPICS})


def count(topics: Mapping[str, Iterable[Any]]) -> Found:
    """Count the records of the topics, each `id` once. A record has the methods of confluent-kafka's `Message`."""
    found = Found()
    for topic, take in TAKE.items():
        seen: set[bytes] = set()
        for record in topics.get(topic, ()):
            headers = dict(record.headers() or ())
            id_ = headers.get("id", b"") if topic != "raw" else b""
            if id_ and id_ in seen:
                found.repeats[topic] += 1
                continue
            seen.add(id_)
            take(found, record, headers)
    return found


def records(kafka: str, topic: str, wanted: Mapping[int, tuple[int, int]]) -> Iterator[Any]:
    """The records of a topic with offsets in `[start, end)` by partition. Raises Unreachable."""
    open_ = {partition: end for partition, (start, end) in wanted.items() if start < end}
    with closing(reader(kafka)) as consumer:
        consumer.assign([TopicPartition(topic, partition, wanted[partition][0]) for partition in open_])
        while open_:
            record = consumer.poll(10)
            if record is None:
                raise Unreachable(f"Kafka at {kafka}: no record of {topic} in 10 s")
            error, partition = record.error(), record.partition()
            if error and error.code() != KafkaError._PARTITION_EOF:
                raise Unreachable(f"Kafka at {kafka}: {error}")
            if partition not in open_:
                continue
            if not error and record.offset() < open_[partition]:
                yield record
            if error or record.offset() >= open_[partition] - 1:
                del open_[partition]


def _raw(found: Found, record: Any, headers: dict[str, bytes]) -> None:
    kind = headers.get("kind")
    if kind in NOT_MESSAGES:
        found.requests += kind == b"request"
        found.ticks += kind != b"request"
        return
    found.raw += 1
    found.messages[digest(headers.get("topic", b"").decode(errors="replace"), record.value() or b"")] += 1


def _routed(found: Found, _record: Any, headers: dict[str, bytes]) -> None:
    if headers.get("kind") in NOT_MESSAGES:
        return
    found.routed += 1
    if headers.get("kind") == b"data":
        found.data += 1
        channel = headers.get("channel", b"")
        found.measurements += channel.startswith(b"m/") and channel.count(b"/") == 1


def _batch(found: Found, record: Any, _headers: dict[str, bytes]) -> None:
    document = msgspec.json.decode(record.value(), type=Document)
    found.batches += 1
    found.members += len(document.members)
    found.leaves += sum(leaves(member.value) for member in document.members)
    opening = next((m for m in document.members if m.time == document.time and m.received == document.opened_at), None)
    if opening is not None and document.close == "timeout":
        found.opened.append((f"{document.source}/m/{opening.type}", opening.time, record.timestamp()[1]))


def _letter(found: Found, record: Any, headers: dict[str, bytes]) -> None:
    reason = msgspec.json.decode(record.value(), type=Letter).reason
    found.letters[headers.get("stage", b"").decode(), reason] += 1


def _outbound(found: Found, record: Any, _headers: dict[str, bytes]) -> None:
    found.outbound[digest((record.key() or b"").decode(errors="replace"), record.value() or b"")] += 1


def leaves(value: Any) -> int:
    """Numeric and boolean leaves of a JSON value (architecture.md, from batch to measurements)."""
    if isinstance(value, dict):
        return sum(map(leaves, value.values()))
    if isinstance(value, list):
        return sum(map(leaves, value))
    return int(isinstance(value, int | float))


TAKE: dict[str, Callable[[Found, Any, dict[str, bytes]], None]] = {
    "raw": _raw,
    "routed": _routed,
    "batches": _batch,
    "dead-letter": _letter,
    "outbound": _outbound,
}


def reader(kafka: str, group: str = "headrace-accounting") -> Any:
    """A consumer of what is committed; it commits nothing itself."""
    return Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 9_000_000,
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
    )


@contextmanager
def _tables(database: Path) -> Iterator[tuple[sqlite3.Connection | None, set[str]]]:
    """The database and the names of its tables; None before it is there."""
    if not database.exists():
        yield None, set()
        return
    with closing(_open(database)) as db:
        yield db, {row[0] for row in db.execute("SELECT name FROM sqlite_master")}


def _open(database: Path) -> sqlite3.Connection:
    db = sqlite3.connect(database, timeout=10)
    db.execute("PRAGMA query_only = ON")
    return db

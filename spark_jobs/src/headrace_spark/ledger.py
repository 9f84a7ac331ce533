"""What the job remembers beside Spark's checkpoint (spark-writer.md 2, 7 and 10).

Theory: one transaction writes the ledger row of a micro-batch, the ids of its batch documents, and adds its counts to
the job's totals. So a micro-batch is either not done, or done and counted, at every instant; kill -9 between any two
steps changes no number. `hr_batch_ledger` answers "is it done?", `hr_seen` "was this document written before?",
`hr_total` "how many so far?", `hr_query` "which checkpoint does this job belong to?", `hr_dispatch` "what went out,
when?" (monotonic ns, cost, rows), the evidence for the capacity limit. `hr_run` says which start of the job sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from headrace_spark.counts import Counts, from_items
from headrace_spark.database import Database, Transaction
from headrace_spark.exits import Superseded
from headrace_spark.sinks.port import Batch

RECENT: Final = 100
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS hr_query (job TEXT PRIMARY KEY, query_id TEXT NOT NULL, checkpoint TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS hr_batch_ledger (query_id TEXT NOT NULL, batch_id BIGINT NOT NULL, job TEXT NOT NULL,"
    " records BIGINT NOT NULL, rows BIGINT NOT NULL, cost BIGINT NOT NULL, committed_at BIGINT NOT NULL,"
    " PRIMARY KEY (query_id, batch_id))",
    "CREATE TABLE IF NOT EXISTS hr_total (job TEXT NOT NULL, name TEXT NOT NULL, value BIGINT NOT NULL,"
    " PRIMARY KEY (job, name))",
    "CREATE TABLE IF NOT EXISTS hr_seen (job TEXT NOT NULL, id TEXT NOT NULL, seen_at BIGINT NOT NULL,"
    " PRIMARY KEY (job, id))",
    "CREATE TABLE IF NOT EXISTS hr_sent (query_id TEXT NOT NULL, batch_id BIGINT NOT NULL, request_id TEXT NOT NULL,"
    " refused TEXT NOT NULL, PRIMARY KEY (query_id, batch_id, request_id))",
    "CREATE TABLE IF NOT EXISTS hr_run (job TEXT PRIMARY KEY, run TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS hr_topic (job TEXT NOT NULL, topic TEXT NOT NULL, topic_id TEXT NOT NULL,"
    " PRIMARY KEY (job, topic))",
    "CREATE TABLE IF NOT EXISTS hr_gap (job TEXT NOT NULL, topic TEXT NOT NULL, kafka_partition BIGINT NOT NULL,"
    " first_offset BIGINT NOT NULL, last_offset BIGINT NOT NULL, accepted_at BIGINT NOT NULL,"
    " PRIMARY KEY (job, topic, kafka_partition, first_offset))",
    "CREATE TABLE IF NOT EXISTS hr_dispatch (at_ns BIGINT NOT NULL, cost BIGINT NOT NULL, rows BIGINT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS hr_dispatch_at ON hr_dispatch (at_ns)",
)
_MINUTE_MS: Final = 60_000
_MINUTE_NS: Final = 60 * 1_000_000_000
_DAY_NS: Final = 86_400 * 1_000_000_000


class Ledger:
    """All calls may raise `StateDown`. `job` keeps several jobs in one store apart. `run` is the start of the job that
    this process belongs to, where several processes of it send."""

    def __init__(self, database: Database, job: str, seen_retention_ms: int = 7 * 86_400_000, run: str = "") -> None:
        self._run = run
        self._database = database
        self._forgotten_ms = self._swept_ns = -_DAY_NS
        self._job = job
        self._retention_ms = seen_retention_ms

    def prepare(self) -> None:
        """Create what is missing; harmless when repeated."""
        with self._database.transaction() as at:
            at.make(_TABLES)

    def query(self) -> tuple[str, str] | None:
        """(query id, checkpoint) of this job, None if it never ran."""
        with self._database.transaction() as at:
            found = at.rows("SELECT query_id, checkpoint FROM hr_query WHERE job = ?", (self._job,))
        return (found[0][0], found[0][1]) if found else None

    def remember(self, query_id: str, checkpoint: str) -> None:
        """From now on this job belongs to this query and checkpoint."""
        with self._database.transaction() as at:
            at.run(
                "INSERT INTO hr_query (job, query_id, checkpoint) VALUES (?, ?, ?) ON CONFLICT (job)"
                " DO UPDATE SET query_id = excluded.query_id, checkpoint = excluded.checkpoint",
                (self._job, query_id, checkpoint),
            )

    def done(self, batch: Batch) -> bool:
        """True if this micro-batch was committed."""
        with self._database.transaction() as at:
            found = at.rows(
                "SELECT 1 FROM hr_batch_ledger WHERE query_id = ? AND batch_id = ?", (batch.query_id, batch.batch_id)
            )
        return bool(found)

    def sent(self, batch: Batch) -> dict[str, str]:
        """The requests of this micro-batch that were answered for good, with why their content was refused, or an empty
        text."""
        query = "SELECT request_id, refused FROM hr_sent WHERE query_id = ? AND batch_id = ?"
        with self._database.transaction() as at:
            return dict(at.rows(query, (batch.query_id, batch.batch_id)))

    def record_sent(self, batch: Batch, request_id: str, refused: str) -> None:
        """This request was answered for good; kept until the micro-batch is committed."""
        with self._database.transaction() as at:
            at.run(
                "INSERT INTO hr_sent (query_id, batch_id, request_id, refused) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (batch.query_id, batch.batch_id, request_id, refused),
            )

    def forget_sent(self, batch: Batch, request_ids: Collection[str]) -> None:
        """These requests are asked again."""
        with self._database.transaction() as at:
            at.many(
                "DELETE FROM hr_sent WHERE query_id = ? AND batch_id = ? AND request_id = ?",
                [(batch.query_id, batch.batch_id, name) for name in request_ids],
            )

    def topics(self) -> dict[str, str]:
        """The id that each topic had at the latest start."""
        with self._database.transaction() as at:
            return dict(at.rows("SELECT topic, topic_id FROM hr_topic WHERE job = ?", (self._job,)))

    def remember_topics(self, ids: Mapping[str, str]) -> None:
        """From now on the topics have these ids."""
        with self._database.transaction() as at:
            at.many(
                "INSERT INTO hr_topic (job, topic, topic_id) VALUES (?, ?, ?) ON CONFLICT (job, topic)"
                " DO UPDATE SET topic_id = excluded.topic_id",
                [(self._job, topic, topic_id) for topic, topic_id in sorted(ids.items())],
            )

    def accept(self, topic: str, partition: int, first: int, last: int, now_ms: int) -> None:
        """Record offsets that are lost, and count them; harmless when repeated."""
        with self._database.transaction() as at:
            new = at.run(
                "INSERT INTO hr_gap (job, topic, kafka_partition, first_offset, last_offset, accepted_at)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (self._job, topic, partition, first, last, now_ms),
            )
            if new:
                self._add(at, Counts(offsets_lost=last - first + 1), [], now_ms)

    def newest(self, query_id: str) -> int | None:
        """The highest batch id that this query committed, None if there is none."""
        with self._database.transaction() as at:
            found = at.rows("SELECT max(batch_id) FROM hr_batch_ledger WHERE query_id = ?", (query_id,))[0][0]
        return None if found is None else int(found)

    def seen(self, ids: Collection[str]) -> set[str]:
        """Those of the document ids that an earlier micro-batch wrote."""
        with self._database.transaction() as at:
            return self.seen_in(at, ids)

    def seen_in(self, at: Transaction, ids: Collection[str]) -> set[str]:
        """`seen`, inside a transaction of the caller."""
        return at.among("hr_seen", ("job", self._job), "id", list(ids))

    def commit(
        self,
        batch: Batch,
        counts: Counts,
        ids: Collection[str],
        now_ms: int,
        beside: Callable[[Transaction], None] = lambda _: None,
    ) -> bool:
        """Write the ledger row, the ids and the totals in one transaction, and what `beside` writes; False if the row
        stood already. `now_ms` is the wall clock, for people and for the retention of the ids."""
        with self._database.transaction() as at:
            new = self.enter(at, batch)
            if new:
                self.finish(at, batch, counts, ids, now_ms)
                beside(at)
        return new

    def enter(self, at: Transaction, batch: Batch) -> bool:
        """Write the ledger row, still without its numbers, in a transaction of the caller; False if it stood already.
        Waits for another transaction that writes the same row."""
        return bool(
            at.run(
                "INSERT INTO hr_batch_ledger (query_id, batch_id, job, records, rows, cost, committed_at)"
                " VALUES (?, ?, ?, 0, 0, 0, 0) ON CONFLICT (query_id, batch_id) DO NOTHING",
                (batch.query_id, batch.batch_id, self._job),
            )
        )

    def finish(self, at: Transaction, batch: Batch, counts: Counts, ids: Collection[str], now_ms: int) -> None:
        """Complete the ledger row, the ids and the totals, in the transaction that wrote the row."""
        at.run(
            "UPDATE hr_batch_ledger SET records = ?, rows = ?, cost = ?, committed_at = ?"
            " WHERE query_id = ? AND batch_id = ?",
            (counts.records, counts.rows, counts.cost, now_ms, batch.query_id, batch.batch_id),
        )
        at.run("DELETE FROM hr_sent WHERE query_id = ? AND batch_id = ?", (batch.query_id, batch.batch_id))
        self._add(at, counts, ids, now_ms)

    def totals(self) -> Counts:
        """Everything this job ever committed."""
        with self._database.transaction() as at:
            return from_items(dict(at.rows("SELECT name, value FROM hr_total WHERE job = ?", (self._job,))))

    def mean_cost(self) -> float | None:
        """Mean cost of a record over the last 100 committed micro-batches, None without any record."""
        query = (
            "SELECT sum(cost), sum(records) FROM (SELECT cost, records FROM hr_batch_ledger WHERE job = ?"
            f" ORDER BY committed_at DESC, batch_id DESC LIMIT {RECENT}) AS recent"
        )
        with self._database.transaction() as at:
            spent, records = at.rows(query, (self._job,))[0]
        return float(spent) / float(records) if spent and records else None

    def claim(self, run: str) -> None:
        """From now on only processes of this start of the job send."""
        with self._database.transaction() as at:
            at.run(
                "INSERT INTO hr_run (job, run) VALUES (?, ?) ON CONFLICT (job) DO UPDATE SET run = excluded.run",
                (self._job, run),
            )

    def dispatch(self, at_ns: int, cost: int, rows: int) -> None:
        """Record that a request goes out now; call it before the request does. `at_ns` is monotonic. Records are kept
        for a day, and a minute longer at most. Raises `Superseded` if another start of the job sends now."""
        if at_ns - self._swept_ns > _MINUTE_NS:
            self._database.once("DELETE FROM hr_dispatch WHERE at_ns < ?", (at_ns - _DAY_NS,))
            self._swept_ns = at_ns
        row = {"at_ns": at_ns, "cost": cost, "rows": rows}
        mine = ("SELECT 1 FROM hr_run WHERE job = ? AND run = ?", (self._job, self._run)) if self._run else None
        if not self._database.note("hr_dispatch", row, mine):
            raise Superseded("another start of this job sends now")

    def _add(self, at: Transaction, counts: Counts, ids: Collection[str], now_ms: int) -> None:
        at.many(
            "INSERT INTO hr_total (job, name, value) VALUES (?, ?, ?) ON CONFLICT (job, name)"
            " DO UPDATE SET value = hr_total.value + excluded.value",
            [(self._job, name, number) for name, number in counts.items().items() if number],
        )
        at.put("hr_seen", "id", sorted(ids), {"job": self._job, "seen_at": now_ms})
        if not 0 <= now_ms - self._forgotten_ms < min(_MINUTE_MS, self._retention_ms // 10):  # it reads all
            at.run("DELETE FROM hr_seen WHERE job = ? AND seen_at < ?", (self._job, now_ms - self._retention_ms))
            self._forgotten_ms = now_ms

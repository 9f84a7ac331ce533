"""`python -m bench spark`: the table of spark-writer.md 13, each figure from a run of the writer's own process.

Rates are wall time, on a machine that also runs broker and database; beside each stands what the writer's processes
used of the CPU, which says more on a machine that others use too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from bench.capacity.figures import pacings
from bench.capacity.owners import Owner, until
from bench.engines.measure import Figure, rated
from bench.spark import PARTS, rivals
from bench.spark.input import MEASUREMENTS, document
from bench.spark.process import UNLIMITED, Run, Servers, job, per_trigger, run
from headrace.kafka import KafkaServer
from headrace.windows import highest, percentile
from headrace_capacity.postgres import PostgresStore
from headrace_spark.capacity import Eager
from headrace_spark.lanes import pack
from headrace_spark.settings import Settings
from headrace_spark.transforms.records import Record, report

Part = Callable[[Servers, bool], Iterator[Figure]]
JOB = {"job": "b", "kafka": "k", "checkpoint": "c", "state_dsn": "sqlite:////s"}
EMPTY = {"mode": "lanes", "lane_mode": "backlog", "sink": "call:bench.spark.sinks:nothing", "cost": "per_row(1)"}
BATCHES = 3
"""Of a run without a limit: large ones, so that what each costs by itself (`overhead`) weighs little."""
TWO = [0, 1]
"""Records go to two partitions in turn."""


@contextmanager
def servers() -> Iterator[Servers]:
    """A Kafka and a PostgreSQL of our own, whose commits are durable."""
    from tests.support.postgres import running

    with tempfile.TemporaryDirectory(prefix="spark-bench-") as name, running() as database:
        kafka = KafkaServer(Path(name) / "kafka").start()
        try:
            yield Servers(Path(name), kafka.bootstrap, database.url)
        finally:
            kafka.kill()


def figures(*, quick: bool, only: Sequence[str] = ()) -> Iterator[Figure]:
    """All of them, or these parts of `PARTS`, each as soon as it is there."""
    with servers() as found:
        for name in only or PARTS:
            part: Part = globals()[name]
            yield from part(found, quick)


def plain(_: Servers, quick: bool) -> Iterator[Figure]:
    """The same work as `decoding` without Spark and Kafka, in one thread: CPU time, whatever else the machine does."""
    records = [Record("t", 0, number, 1, None, document(number), []) for number in range(200 if quick else 1_000)]
    settings = Settings(**JOB, **EMPTY, max=1000, capacity=UNLIMITED, expected_cost_per_record=1.0)  # type: ignore[arg-type]

    def run(given: Sequence[Record]) -> object:
        found = [report(one, settings.max_document_bytes) for one in given]
        return pack(found, found, settings)

    count = len(records) * MEASUREMENTS
    yield rated("decode, validate, pack, no Spark, one core", count, run, lambda: records, unit="measurements/CPU s")


def decoding(found: Servers, quick: bool) -> Iterator[Figure]:
    """Decode, validate, pack; the sink takes all at once."""
    records = 6_000 if quick else 15_000
    values = [document(number) for number in range(records)]
    seen = run(job(found, values, TWO, **EMPTY, **per_trigger(records // BATCHES, MEASUREMENTS)))
    assert seen.rows == records * MEASUREMENTS
    yield Figure("decode, validate, pack, empty sink", seen.rate, "measurements/s", 25_000, notes=seen.notes())


def staged(found: Servers, quick: bool) -> Iterator[Figure]:
    """PostgreSQL staged, end to end, and its rivals in the same database."""
    seen, copied, figures = _beside_copy(found, "staged", quick)
    yield from figures
    yield Figure("plain COPY by psycopg, one connection", copied, "rows/s")
    rate, problem = rivals.jdbc_rate(found.database, seen.rows)
    name = "Spark's own JDBC writer, two connections" + (f" (skipped: {problem})" if problem else "")
    yield Figure(name, rate, "rows/s", notes={"skipped": problem} if problem else {})
    yield Figure("memory of a Python worker, staged", seen.worker_mib, "MiB", 512, least=False)
    yield Figure("start to first write", seen.first_write_s, "s", 30, least=False)


def direct(found: Servers, quick: bool) -> Iterator[Figure]:
    """PostgreSQL direct, end to end: tasks upsert, at one time."""
    _, _, figures = _beside_copy(found, "direct", quick)
    yield from figures


def _beside_copy(found: Servers, path: str, quick: bool) -> tuple[Run, float, list[Figure]]:
    """A job into PostgreSQL by this path without a limit, and plain COPY of the same rows; rows/s."""
    records = 3_000 if quick else 36_000
    values = [document(number) for number in range(records)]
    cost = MEASUREMENTS * (2 if path == "staged" else 1)
    one = job(found, values, TWO, sink=found.database, state_dsn=found.database, path=path, cost="per_row(1)",
              **per_trigger(records // BATCHES, cost))  # fmt: skip
    seen = run(one, found.database)
    assert seen.rows == records * MEASUREMENTS
    copied = rivals.copy_rate(found.database, rivals.rows_of(values), f"bench_copy_{path}")
    target = 10_000 if path == "staged" else None
    rate = Figure(f"PostgreSQL {path}, end to end", seen.rate, "rows/s", target, floor=copied, notes=seen.notes())
    return seen, copied, [rate, Figure(f"PostgreSQL {path}, of plain COPY", 100 * seen.rate / copied, "%", 60)]


def overhead(found: Servers, quick: bool) -> Iterator[Figure]:
    """Micro-batches of 1,000 records of one measurement each."""
    count = 12 if quick else 60
    values = [document(number, 1) for number in range(1000 * count)]
    seen = run(job(found, values, TWO, **EMPTY, **per_trigger(1000, 1)))
    took = seen.batch_seconds
    notes = {**seen.notes(), "p50": round(percentile(took, 0.5) or 0.0, 3)}
    yield Figure("micro-batch of 1,000 records, empty sink, p95", percentile(took, 0.95) or 0.0, "s", 1.5, False,
                 notes=notes)  # fmt: skip


def skew(found: Servers, quick: bool) -> Iterator[Figure]:
    """One key, so one partition, has half of the rows: how long the last tenth takes to be staged. Nothing forbids that
    two tasks share that partition."""
    records = 600 if quick else 3_000
    values = [document(number) for number in range(records)]
    one = job(found, values, [0, 1, 0, 2, 0, 3], sink=found.database, state_dsn=found.database, path="staged",
              cost="per_row(1)", **per_trigger(records, 2 * MEASUREMENTS))  # fmt: skip
    seen = run(one, found.database)
    rows = records * MEASUREMENTS
    yield Figure("one key has half of the rows: last 10 % of the rows", 100 * last_tenth(seen, rows), "% of the time",
                 20, False, notes=seen.notes())  # fmt: skip


def last_tenth(seen: Run, rows: int) -> float:
    """Part of the time of staging, which comes before all merging, that its last tenth takes."""
    moments, staged_rows = [], 0
    for at, _, number in seen.sent:
        if staged_rows < rows:
            staged_rows += number
            moments.append((at, staged_rows))
    ninth = next(at for at, so_far in moments if so_far >= 0.9 * rows)
    return (moments[-1][0] - ninth) / max(1, moments[-1][0] - moments[0][0])


def saturated(found: Servers, quick: bool) -> Iterator[Figure]:
    """How much of a leased capacity is used with more input than it takes, batch after batch; both ways in which a
    partition changes its owner (capacity.md 13)."""
    capacity = 2_000
    lengths = (20, 90.0, 2 if quick else 15), (5, 80.0, 4 if quick else 60)
    for handover, (seconds, target, batches) in product(("wait", "inherit"), lengths):
        cost = 2 * MEASUREMENTS
        limit = capacity * seconds // cost
        values = [document(number) for number in range(limit * batches)]
        one = job(found, values, TWO, sink=found.database, state_dsn=found.database, path="staged", cost="per_row(1)",
                  lease_store=found.database, resource=f"saturated-{seconds}-{handover}", max=200,
                  handover=handover,
                  **per_trigger(limit, cost, capacity))  # fmt: skip
        seen = run(one, found.database)
        spent = [(at, units) for at, units, _ in seen.sent]
        span = seen.ends[-1][0] - seen.ends[0][0]
        used = sum(units for _, units in spent) * (batches - 1) / batches
        name = f"capacity used, saturated, {handover}, batches of {seconds} s"
        yield Figure(name, 100 * used / (capacity * span), "%", target, notes=seen.notes())
        yield Figure(f"{name}: largest second", highest(spent) / capacity, "ratio", 1.0, least=False)


def one_with_little_work(found: Servers, _: bool) -> Iterator[Figure]:
    """Two writers' lease clients; one has no work any more: when has the other all of it?"""
    stores = [PostgresStore(found.database), PostgresStore(found.database)]
    owners = [Owner(Eager(store, name="two", shared_capacity=2_000, factor=100), 10).start() for store in stores]
    first, second = owners
    for owner in owners:
        owner.wants.set()
    until(lambda: first.held() == second.held() == 10)
    first.wants.clear()
    until(lambda: first.batcher.buffered == 0)
    took = until(lambda: second.held() == 20)
    for owner in owners:
        owner.stop()
    yield Figure("two jobs, one runs out of work: the other has the rest", took, "s", 3, least=False)


def slices(_: Servers, quick: bool) -> Iterator[Figure]:
    """The classic pacing of Spark writers, a slice of capacity for each interval, beside ours."""
    yield from pacings(3 if quick else 10)

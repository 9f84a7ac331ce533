"""The picture: four writers, each a Spark of its own, share one resource; one is killed. Target (what the lease store
granted) and achieved rate (what they recorded as sent) over time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import matplotlib

from bench.engines.measure import Figure
from bench.spark import process
from bench.spark.figures import TWO, servers
from bench.spark.input import MEASUREMENTS, document
from headrace.windows import highest
from headrace_capacity.postgres import PostgresStore
from tests.support.spark_job import Job

matplotlib.use("Agg")
import matplotlib.pyplot as plt

JOBS, CAPACITY, RECORDS = 4, 2_000, 4_000
BATCH_S = 30
BEFORE_S, AFTER_S = 15.0, 25.0
START_S = 600.0
SECOND_NS = 1_000_000_000
Granted = list[tuple[int, int]]
"""(monotonic ns, units granted to all) at each look."""


def picture(path: Path) -> list[Figure]:
    """Run it, draw it, and say what the largest second was."""
    with servers() as found:
        jobs = [_job(found) for _ in range(JOBS)]
        store = PostgresStore(found.database)
        granted: Granted = []
        try:
            for one in jobs:
                process.start(one)
            _look(store, granted, START_S, lambda: all(_sends(one) for one in jobs))
            began = time.monotonic_ns()
            _look(store, granted, BEFORE_S)
            jobs[0].send(signal.SIGKILL)
            killed = time.monotonic_ns()
            _look(store, granted, AFTER_S)
        finally:
            for one in jobs:
                one.end()
        sent = [process.dispatches(one, None, 0) for one in jobs]
    _draw(path, [[(at, units) for at, units, _ in each] for each in sent], granted, began, killed)
    everything = sorted((at, units) for each in sent for at, units, _ in each)
    used = sum(units for at, units in everything if killed + 7 * SECOND_NS <= at < killed + int(AFTER_S) * SECOND_NS)
    return [
        Figure("four Spark jobs, one killed: largest second", highest(everything) / CAPACITY, "ratio", 1.0, False),
        Figure("four Spark jobs: used by the other three, 7 s after the kill", 100 * used / (CAPACITY * (AFTER_S - 7)),
               "%"),
    ]  # fmt: skip


def _job(found: process.Servers) -> Job:
    """The driver sends; a small JVM, as there are four of them."""
    limit = process.per_trigger(CAPACITY * BATCH_S // MEASUREMENTS, MEASUREMENTS, CAPACITY)
    values = [document(number) for number in range(RECORDS)]
    return process.job(
        found, values, TWO, sink=found.database, cost="per_row(1)", lease_store=found.database, resource="picture",
        master="local[1,4]", **{**limit, "max": 50},
        spark={"spark.driver.memory": "512m"},
    )  # fmt: skip


def _sends(one: Job) -> bool:
    return (one.folder / "state.db").exists() and bool(
        one.sql("state.db", "SELECT 1 FROM sqlite_master WHERE name = 'hr_dispatch'")
        and one.sql("state.db", "SELECT 1 FROM hr_dispatch LIMIT 1")
    )


def _look(store: PostgresStore, granted: Granted, seconds: float, done: object = None) -> None:
    """Ask the store what it granted, four times a second, until it is done or the time is over."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not (callable(done) and done()):
        try:
            granted.append((time.monotonic_ns(), int(store.status("picture").granted or 0)))
        except Exception:  # there is no such resource before the first job has made it
            time.sleep(0.25)
            continue
        time.sleep(0.25)


def _draw(path: Path, sent: list[list[tuple[int, int]]], granted: Granted, began: int, killed: int) -> None:
    origin, bins = began - 5 * SECOND_NS, int(5 + BEFORE_S + AFTER_S)
    seconds = [index + 0.5 for index in range(bins)]
    figure, axes = plt.subplots(figsize=(8.5, 4.2), dpi=110)
    axes.stackplot(seconds, [_rates(each, origin, bins) for each in sent], alpha=0.55,
                   labels=[f"job {index + 1}, achieved" for index in range(JOBS)])  # fmt: skip
    looks = [((at - origin) / SECOND_NS, units) for at, units in granted if at >= origin]
    axes.plot([at for at, _ in looks], [units for _, units in looks], color="black", lw=1.2, label="target (granted)")
    axes.axhline(CAPACITY, color="tab:red", lw=1, ls="--", label="shared capacity")
    axes.axvline((killed - origin) / SECOND_NS, color="grey", lw=1, ls=":", label="job 1 killed (kill -9)")
    axes.set_xlabel("s")
    axes.set_ylabel("units/s")
    axes.set_xlim(0, bins)
    axes.set_ylim(0, CAPACITY * 1.4)
    axes.set_title("Four Spark writers share a capacity; one is killed", fontsize=10)
    axes.legend(fontsize=7, ncols=4, loc="upper center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _rates(sent: list[tuple[int, int]], origin: int, bins: int) -> list[float]:
    rates = [0.0] * bins
    for at, units in sent:
        index = (at - origin) // SECOND_NS
        if 0 <= index < bins:
            rates[index] += units
    return rates

"""A run of the writer, watched from outside: its log, its ledger of dispatches, CPU and memory of its processes."""

from __future__ import annotations

import json
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench.spark import input as records
from tests.support.docker import REPOSITORY
from tests.support.spark_job import Job, create_topics, query

UNLIMITED = 1_000_000_000
LONGEST_S = 1500


@dataclass
class Servers:
    """Where brokers and database are, and a folder for jobs."""

    folder: Path
    kafka: str
    database: str


@dataclass
class Run:
    """What was seen. `ends`: when each micro-batch was done, with its rows, Unix seconds; `sent`: dispatches."""

    started: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    first_write_s: float = 0.0
    cpu_s: float = 0.0
    worker_mib: float = 0.0

    @property
    def rows(self) -> int:
        """Of all micro-batches."""
        return sum(rows for _, rows in self.ends)

    @property
    def rate(self) -> float:
        """Rows/s after the first micro-batch, in which Spark and Python start up."""
        return (self.rows - self.ends[0][1]) / (self.ends[-1][0] - self.ends[0][0])

    @property
    def batch_seconds(self) -> list[float]:
        """From one end to the next, back to back."""
        moments = [at for at, _ in self.ends]
        return [after - before for before, after in pairwise(moments)]

    def notes(self) -> dict[str, Any]:
        """What says how much of it is the machine's load."""
        cpu = round(self.rows / self.cpu_s) if self.cpu_s else 0
        return {"rows": self.rows, "microbatches": len(self.ends), "cpu_s": round(self.cpu_s, 1), "rows_per_cpu_s": cpu}


class Watch:
    """Looks at a process and its children until `stop`: CPU seconds of all, and the largest Python worker."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[int, float] = {}
        self.worker_mib = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        """Of all processes seen, those that are gone too."""
        return sum(self._cpu.values())

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ends.wait(0.5):
            with suppress(psutil.Error):  # it has ended
                for process in [self._root, *self._root.children(recursive=True)]:
                    with suppress(psutil.Error):
                        self._one(process)

    def _one(self, process: psutil.Process) -> None:
        with process.oneshot():
            times = process.cpu_times()
            self._cpu[process.pid] = times.user + times.system
            if "pyspark.daemon" in process.cmdline():
                self.worker_mib = max(self.worker_mib, process.memory_info().rss / 2**20)


def job(servers: Servers, values: list[bytes], partition_of: list[int], **changes: Any) -> Job:
    """A job of its own name and topics, with its input in Kafka."""
    prefix = f"b{uuid.uuid4().hex[:8]}."
    partitions = max(partition_of) + 1
    create_topics(servers.kafka, prefix, partitions)
    records.send(servers.kafka, f"{prefix}batches", values, partition_of)
    folder = servers.folder / prefix
    folder.mkdir()
    plain = {"job": prefix.rstrip("."), "table": prefix.rstrip("."), "max": 1000, "available_now": True}
    return Job(folder, servers.kafka, prefix, **{**plain, **changes})


def per_trigger(limit: int, cost_per_record: float, capacity: int = UNLIMITED) -> dict[str, Any]:
    """Settings that make `limit` records a micro-batch (spark-writer.md 2): a share of a second's capacity, or all of
    it for longer. The trigger has no other effect where a job catches up (`available_now`)."""
    seconds = (limit + 0.5) * cost_per_record / (capacity * 0.8)
    return {
        "capacity": capacity,
        "share": min(1.0, seconds),
        "trigger_ms": round(1000 * max(1.0, seconds)),
        "expected_cost_per_record": float(cost_per_record),
    }


def run(one: Job, database: str | None = None) -> Run:
    """Start it, wait for its end. `database`: where it records its dispatches, if not in SQLite."""
    found = Run()
    began_ns = time.monotonic_ns()
    start(one)
    assert one.process is not None
    watch = Watch(one.process.pid)
    try:
        code = one.wait(LONGEST_S)
    finally:
        one.end()
        watch.stop()
    assert code == 0, one.log()[-3000:]
    found.cpu_s, found.worker_mib = watch.cpu_s, watch.worker_mib
    for line in one.log().splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "started":
            found.started = moment(event)
        elif event.get("event") == "micro-batch":
            found.ends.append((moment(event), event["rows"]))
    found.sent = dispatches(one, database, began_ns)
    found.first_write_s = (found.sent[0][0] - began_ns) / 1e9
    return found


def start(one: Job) -> None:
    """With this folder in the path, for the empty sink."""
    one.start(environment={"PYTHONPATH": str(REPOSITORY)})


def dispatches(one: Job, database: str | None, since_ns: int) -> list[tuple[int, int, int]]:
    """(monotonic ns, cost, rows), in order."""
    text = f"SELECT at_ns, cost, rows FROM hr_dispatch WHERE at_ns >= {since_ns} ORDER BY at_ns"
    found = query(database, text) if database else one.sql("state.db", text)
    return [(int(at), int(cost), int(rows)) for at, cost, rows in found]


def moment(event: dict[str, Any]) -> float:
    """Of a log line, Unix seconds."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()

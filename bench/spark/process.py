"""A run of the writer, watched from outside: its log, its ledger of dispatches, CPU and memory of its processes."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from bench.spark import input as records
from tests.support.docker import REPOSITORY
from tests.support.spark_job import Job, create_topics, query

UNLIMITED = 1_000_000_000
LONGEST_S = 1500
DATABASE = "database"


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
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds by kind of process: `kind_of`."""
    steady: dict[str, float] = field(default_factory=dict)
    """The same, after the first micro-batch."""
    worker_mib: float = 0.0

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the writer's processes, without the database."""
        return sum(seconds for kind, seconds in self.cpu.items() if kind != DATABASE)

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
        later = max(1, self.rows - self.ends[0][1])
        spent = {f"{kind}_us_a_row": round(1e6 * seconds / later, 1) for kind, seconds in sorted(self.steady.items())}
        return {"rows": self.rows, "microbatches": len(self.ends), "cpu_s": round(self.cpu_s, 1),
                "rows_per_cpu_s": cpu, **spent}  # fmt: skip


def kind_of(command: list[str]) -> str:
    """What a process of the writer is, by its command line: the driver's Python, its JVM, a Python worker."""
    if "pyspark.daemon" in command:
        return "workers"
    return "jvm" if command and command[0].endswith("java") else "driver"


def server_of(url: str) -> psutil.Process | None:
    """The PostgreSQL server on this host that has the port of the URL."""
    port = str(urlsplit(url).port)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words and words[0].endswith("/postgres") and port in words:
            return process
    return None


def tree_cpu_s(root: psutil.Process) -> float:
    """CPU seconds of a server and of all its backends, also of those that have ended."""
    total = root.cpu_times()
    found = total.user + total.system + total.children_user + total.children_system
    for child in root.children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            found += times.user + times.system
    return found


class Watch:
    """Looks at a process and its children until `stop`: CPU seconds by kind over time, and the largest Python worker.
    `database`: the server whose CPU is looked at too."""

    def __init__(self, pid: int, database: str | None = None) -> None:
        self._root = psutil.Process(pid)
        self._server = server_of(database) if database else None
        self._spent: dict[int, tuple[str, float]] = {}
        self._looks: list[tuple[float, dict[str, float]]] = []
        self.worker_mib = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def cpu(self, since: float = 0.0, until: float = float("inf")) -> dict[str, float]:
        """CPU seconds by kind between two moments (Unix seconds), of processes that are gone too."""
        first, last = self._at(since), self._at(until)
        return {kind: seconds - first.get(kind, 0.0) for kind, seconds in last.items()}

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _at(self, moment: float) -> dict[str, float]:
        return next((found for at, found in reversed(self._looks) if at <= moment), {})

    def _watch(self) -> None:
        while not self._ends.wait(0.25):
            with suppress(psutil.Error):  # it has ended
                for process in [self._root, *self._root.children(recursive=True)]:
                    with suppress(psutil.Error):
                        self._look(process)
            found: dict[str, float] = defaultdict(float)
            for kind, seconds in self._spent.values():
                found[kind] += seconds
            if self._server is not None:
                found[DATABASE] = tree_cpu_s(self._server)
            self._looks.append((time.time(), found))

    def _look(self, process: psutil.Process) -> None:
        with process.oneshot():
            times = process.cpu_times()
            kind = kind_of(process.cmdline())
            self._spent[process.pid] = kind, times.user + times.system
            if kind == "workers":
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
    watch = Watch(one.process.pid, database)
    try:
        code = one.wait(LONGEST_S)
    finally:
        one.end()
        watch.stop()
    assert code == 0, one.log()[-3000:]
    found.worker_mib = watch.worker_mib
    for line in one.log().splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "started":
            found.started = moment(event)
        elif event.get("event") == "micro-batch":
            found.ends.append((moment(event), event["rows"]))
    found.cpu = watch.cpu()
    found.steady = watch.cpu(found.ends[0][0], found.ends[-1][0])
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

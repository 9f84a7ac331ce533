"""`python -m bench streams [--json] [--quick] [--only PART]`: everything in one run, on one broker of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench.engines.measure import Figure
from bench.streams import latency, peer, plain, size, stages
from bench.streams.rounds import Contestant, contest, summary
from headrace.jars import KAFKA_VERSION
from headrace.java import java
from headrace.kafka import KafkaServer

RATE_TARGET = 80_000


@dataclass(frozen=True)
class Sizes:
    """How much is measured: messages a round, rounds, plain Faust's messages, seconds of latency, entities, batches."""

    registration: int
    batching: int
    rounds: int
    plain: int
    latency_s: float
    entities: int
    open_batches: int


FULL = Sizes(200_000, 150_000, 5, 5_000, 30.0, 1_000_000, 100_000)
QUICK = Sizes(50_000, 40_000, 2, 2_000, 10.0, 20_000, 5_000)


@dataclass
class Run:
    """One run: where, how much, and what was found."""

    kafka: str
    folder: Path
    sizes: Sizes
    figures: list[Figure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def tell(self, figure: Figure) -> None:
        """Keep and print a figure."""
        from bench.__main__ import line

        self.figures.append(figure)
        print(line(figure), flush=True)

    def rates(self, one: Contestant, what: str, target: float | None = None) -> tuple[float, float]:
        """The figures of a contestant's rounds. Returns the medians of rate and CPU."""
        told = summary(one.rounds)
        name, rate, cpu = f"{one.name}, {what}", float(told["rate_median"]), float(told["cpu_us_median"])
        self.tell(Figure(f"{name}, rate", rate, "messages/s", target, notes=told))
        self.tell(Figure(f"{name}, CPU", cpu, "us/message", notes=told))
        return rate, cpu

    def beside(self, name: str, ours: tuple[float, float], theirs: tuple[float, float]) -> None:
        """Our rate and CPU as shares of the peer's: not slower, and less."""
        self.tell(Figure(f"{name}, rate by that of Kafka Streams", ours[0] / theirs[0], "x", 1.0))
        self.tell(Figure(f"{name}, CPU by that of Kafka Streams", ours[1] / theirs[1], "x", 1.0, least=False))

    def classes(self) -> str | None:
        """Class path of the peer; None, said once, where there is no compiler."""
        try:
            return peer.build(self.folder / "classes")
        except peer.NoCompiler as error:
            if str(error) not in self.left_out:
                self.left_out.append(str(error))
                print(error)
            return None


def part_registration(run: Run) -> None:
    """Raw to routed, the peer's and plain Faust's counting, in turns."""
    what, count, classes = "raw to routed", run.sizes.registration, run.classes()
    with ExitStack() as stack:
        ours = stack.enter_context(stages.registration(run.kafka, run.folder / "registration", count))
        others = [stack.enter_context(plain.count(run.kafka, run.folder / "plain", run.sizes.plain))]
        if classes:
            others.append(stack.enter_context(peer.count(run.kafka, classes, run.folder / "peer-count", count)))
        contest([ours, *others], run.sizes.rounds)
    figures = run.rates(ours, what, RATE_TARGET)
    beside = [run.rates(other, what) for other in others]
    if classes:
        run.beside("registration", figures, beside[1])


def part_batching(run: Run) -> None:
    """Routed to batches, and the peer's batches, in turns."""
    what, count, classes = "routed to batches", run.sizes.batching, run.classes()
    with ExitStack() as stack:
        ours = stack.enter_context(stages.batching(run.kafka, run.folder / "batching", count))
        others = []
        if classes:
            others.append(stack.enter_context(peer.batch(run.kafka, classes, run.folder / "peer-batch", count)))
        contest([ours, *others], run.sizes.rounds)
    figures = run.rates(ours, what, RATE_TARGET)
    for other in others:
        run.beside("batching", figures, run.rates(other, what))


def part_latency(run: Run) -> None:
    """Publish to batch."""
    found = latency.latency(run.kafka, run.folder / "latency", run.sizes.latency_s)
    name = "raw produced to batch readable, beyond the timeout, 5,000/s, "
    run.tell(Figure(name + "p99", found["p99_ms"], "ms", 150, least=False, notes=found))
    run.tell(Figure(name + "p50", found["p50_ms"], "ms", notes=found))


def part_size(run: Run) -> None:
    """Memory and restore."""
    entities, batches = run.sizes.entities, run.sizes.open_batches
    found = size.size(run.kafka, run.folder / "size", entities, batches)
    name = f"memory of a worker with {entities:,} entities, {batches:,} open batches"
    run.tell(Figure(f"{name}, most", found["memory_peak_mib"], "MiB", 400, least=False, notes=found))
    run.tell(Figure(f"{name}, at rest", found["memory_full_mib"], "MiB", notes=found))
    keys = found["restored_keys"]
    run.tell(Figure(f"restore of {keys:,} keys", found["restore_keys_per_s"], "keys/s", 150_000, notes=found))


PARTS: dict[str, Callable[[Run], None]] = {
    "registration": part_registration,
    "batching": part_batching,
    "latency": part_latency,
    "size": part_size,
}


def streams(*, as_json: bool, quick: bool, only: list[str]) -> int:
    """Measure and print. Returns the exit code, which says nothing about targets: those are in the figures."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place:
        server = KafkaServer(Path(place) / "kafka").start()
        try:
            run = Run(server.bootstrap, Path(place), QUICK if quick else FULL)
            for name, part in PARTS.items():
                if not only or name in only:
                    part(run)
        finally:
            server.stop()
    if as_json:
        print(json.dumps(document(run, quick=quick, seconds=time.monotonic() - started)))
    return 0


def document(run: Run, *, quick: bool, seconds: float) -> dict[str, Any]:
    """All figures as one object."""
    return {
        "bench": "streams", "quick": quick,
        "clock": "CPU: user and system time of the process, all threads; rates: wall time, medians of the rounds",
        "machine": {"cores": os.cpu_count(), "memory_mib": round(psutil.virtual_memory().total / 2**20),
                    "cpu": _processor(), "load": [round(value, 2) for value in os.getloadavg()]},
        "versions": {"python": platform.python_version(), "kafka": KAFKA_VERSION, "java": _java(),
                     **{name: version(name) for name in ("faust-streaming", "aiokafka", "rocksdict", "msgspec")}},
        "seconds": round(seconds, 1),
        "figures": {figure.name: figure.document() for figure in run.figures},
        "met": [figure.name for figure in run.figures if figure.met],
        "missed": [figure.name for figure in run.figures if figure.met is False],
        "left_out": run.left_out,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _java() -> str:
    ran = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False)
    return (ran.stderr or ran.stdout).splitlines()[0]

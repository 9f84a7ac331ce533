"""`python -m bench streams [--json] [--quick] [--only PART]`: everything in one run, on one broker of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench.engines.measure import Figure
from bench.streams import latency, peer, plain, size, stages
from bench.streams.rounds import Round, summary
from headrace.jars import KAFKA_VERSION
from headrace.java import java
from headrace.kafka import KafkaServer

RATE_TARGET = 80_000
STREAMS = "Kafka Streams"


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

    def rates(self, name: str, found: list[Round], target: float | None = None) -> tuple[float, float]:
        """The figures of rounds. Returns the medians of rate and CPU."""
        told = summary(found)
        rate, cpu = float(told["rate_median"]), float(told["cpu_us_median"])
        spread = {"rates": [round(r.rate) for r in found], "cpu_us": [round(r.cpu_us, 2) for r in found]}
        self.tell(Figure(f"{name}, rate", rate, "messages/s", target, notes=told | spread))
        self.tell(Figure(f"{name}, CPU", cpu, "us/message", notes=told))
        return rate, cpu

    def beside(self, name: str, ours: tuple[float, float], theirs: tuple[float, float]) -> None:
        """Our rate and CPU as shares of the peer's: not slower, and less."""
        self.tell(Figure(f"{name}, rate by that of {STREAMS}", ours[0] / theirs[0], "x", 1.0))
        self.tell(Figure(f"{name}, CPU by that of {STREAMS}", ours[1] / theirs[1], "x", 1.0, least=False))


def part_stages(run: Run) -> None:
    """Both stages, the peer, and plain Faust."""
    sizes, place = run.sizes, run.folder
    found = stages.registration(run.kafka, place / "registration", sizes.registration, sizes.rounds)
    registration = run.rates("registration, raw to routed", found, RATE_TARGET)
    found = stages.batching(run.kafka, place / "batching", sizes.batching, sizes.rounds)
    batching = run.rates("batching, routed to batches", found, RATE_TARGET)
    try:
        classes = peer.build(place / "classes")
    except peer.NoCompiler as error:
        run.left_out.append(str(error))
        print(error)
    else:
        found = peer.count(run.kafka, classes, place / "peer-count", sizes.registration, sizes.rounds)
        run.beside("registration", registration, run.rates(f"{STREAMS} counting, raw to routed", found))
        found = peer.batch(run.kafka, classes, place / "peer-batch", sizes.batching, sizes.rounds)
        run.beside("batching", batching, run.rates(f"{STREAMS} batching, routed to batches", found))
    found = plain.count(run.kafka, place / "plain", sizes.plain, min(3, sizes.rounds))
    run.rates("plain Faust counting, raw to routed", found)


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


PARTS: dict[str, Callable[[Run], None]] = {"stages": part_stages, "latency": part_latency, "size": part_size}


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

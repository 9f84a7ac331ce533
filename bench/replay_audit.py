"""`python -m bench.replay_audit [--quick]`: CPU time of the replay audit for each message (spark-writer.md 13).

A log of routed records over four partitions and the batches of it are written into a Kafka of our own, then audited by
the job's own process on `local[2]`. CPU time is that of the process and all its descendants: driver, JVM and Python
workers. A short log and a long one are audited; the figure is the difference between them, so the start of Spark is
left out. Two cores run two tasks at a time, so they take twice as many messages as one second of CPU time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench.engines.measure import Figure
from headrace.jars import connector_jars
from headrace.kafka import KafkaServer
from headrace_core.batching.config import BatchingConfig
from tests.support.routed import batches, put, routed

PARTITIONS, CORES = 4, 2
TARGET = 20_000.0
SETTINGS = {"window": 500, "timeout": 1000, "dedup_horizon": 60_000}


def figures(*, quick: bool = False) -> Iterator[Figure]:
    """Messages per CPU second, and what two cores make of it."""
    short, long = (10_000, 60_000) if quick else (20_000, 400_000)
    with tempfile.TemporaryDirectory() as folder:
        kafka = KafkaServer(Path(folder) / "kafka").start()
        try:
            spent = [_audited(kafka.bootstrap, Path(folder), f"n{count}.", count) for count in (short, long)]
        finally:
            kafka.kill()
    rate = (long - short) / (spent[1] - spent[0])
    notes = {"messages": long, "cpu_s": round(spent[1], 1), "cpu_s_of_the_start": round(spent[0], 1)}
    yield Figure("replay audit, messages for a second of CPU time", rate, "messages/CPU s", notes=notes)
    yield Figure(f"replay audit, {CORES} cores", CORES * rate, "messages/s", TARGET)


def _audited(kafka: str, folder: Path, prefix: str, count: int) -> float:
    """CPU seconds of one audit of `count` messages. All of them must be equal."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for made in admin.create_topics(
        [NewTopic(prefix + name, PARTITIONS, 1) for name in ("routed", "batches")]
    ).values():
        made.result(30)
    base_ms = int(time.time() - 86_400) * 1000
    for partition in range(PARTITIONS):
        log = list(routed(partition, count // PARTITIONS, base_ms, sources=250))
        put(kafka, f"{prefix}routed", log)
        put(kafka, f"{prefix}batches", batches(log, BatchingConfig(**SETTINGS)), base_ms + 86_000_000)
    config = folder / f"{prefix}toml"
    config.write_text(_job(kafka, folder, prefix))
    command = [sys.executable, "-m", "headrace_spark.jobs.audit", "--config", str(config)]
    return _cpu_seconds(command)


def _job(kafka: str, folder: Path, prefix: str) -> str:
    plain = {
        "job": "bench", "kafka": kafka, "prefix": prefix, "checkpoint": f"{folder}/checkpoint",
        "sink": f"sqlite://{folder}/sink.db", "state_dsn": f"sqlite://{folder}/state.db", "capacity": 100,
        "cost": "per_row(1)", "expected_cost_per_record": 1.0, "max": 10, "master": f"local[{CORES}]",
    }  # fmt: skip
    spark = {"spark.jars": ",".join(map(str, connector_jars())), "spark.jars.packages": ""}
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    lines += ["[audit.batching]", *(f"{name} = {value}" for name, value in SETTINGS.items())]
    lines += ["[spark]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in spark.items())]
    return "\n".join(lines) + "\n"


def _cpu_seconds(command: Sequence[str]) -> float:
    """Run it; the CPU time of the process and its descendants, as last seen of each."""
    spent: dict[tuple[int, float], float] = {}
    with tempfile.TemporaryFile() as errors:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while running.poll() is None:
            _look(running.pid, spent)
            time.sleep(0.2)
        errors.seek(0)
        if running.returncode:
            raise RuntimeError(errors.read().decode()[-4000:])
    return sum(spent.values())


def _look(pid: int, spent: dict[tuple[int, float], float]) -> None:
    try:
        root = psutil.Process(pid)
        every = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in every:
        try:
            with one.oneshot():
                times = one.cpu_times()
                spent[one.pid, one.create_time()] = times.user + times.system
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.replay_audit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter log")
    for figure in figures(quick=parser.parse_args().quick):
        print(json.dumps(figure.document()), flush=True)

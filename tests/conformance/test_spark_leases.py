"""Processes of Spark jobs that lease their capacity from a real PostgreSQL: one limit, used well, whoever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_spark import capacity
from headrace_spark.pacing import SECOND_NS
from headrace_spark.settings import Settings, check
from tests.support import postgres
from tests.unit.spark.fakes import job
from tests.unit.spark.test_pacing import largest_window

CAPACITY = 400


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    if postgres.binaries() is None:
        pytest.skip("no PostgreSQL server on this machine")
    with postgres.server() as url:
        yield url


def settings(url: str) -> Settings:
    return job(sink=url, state_dsn=url, path="staged", lease_store=url, resource="db", capacity=CAPACITY, max=40)


def spend(url: str, log: Path, seed: int) -> None:
    """What a Python worker does: one request after the other, until it is ended."""
    dice, pacer = random.Random(seed), capacity.in_every_process(settings(url))()
    with log.open("a", buffering=1) as file:
        while True:
            cost = dice.choice([5, 20, 40])
            pacer.run(cost, lambda at_ns, cost=cost: file.write(f"{at_ns} {cost}\n"))


def start(url: str, log: Path, seed: int) -> subprocess.Popen[bytes]:
    call = f"spend({url!r}, pathlib.Path({str(log)!r}), {seed})"
    code = f"import pathlib; from tests.conformance.test_spark_leases import spend; {call}"
    return subprocess.Popen([sys.executable, "-c", code])


def dispatched(log: Path) -> list[tuple[int, int]]:
    return sorted(
        (int(at), int(cost)) for at, _, cost in (line.partition(" ") for line in log.read_text().splitlines() if line)
    )


def test_processes_share_one_capacity_and_what_a_killed_one_had_comes_back(store: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    check(settings(store))
    alive = [start(store, log, seed) for seed in range(3)]
    try:
        wait_for_seconds_of(log, 4)
        alive[0].send_signal(signal.SIGKILL)
        alive[0].wait(30)
        wait_for_seconds_of(log, 14)
    finally:
        for one in alive:
            one.kill()
            one.wait(30)
    out = dispatched(log)
    assert 0 < largest_window(out) <= CAPACITY
    last = [cost for at, cost in out if at > out[-1][0] - 3 * SECOND_NS]
    assert sum(last) >= 0.6 * 3 * CAPACITY, "two of three use what the third one had"


def wait_for_seconds_of(log: Path, seconds: int) -> None:
    """Until the dispatches span so much time."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        out = dispatched(log)
        if out and out[-1][0] - out[0][0] >= seconds * SECOND_NS:
            return
        time.sleep(0.2)
    raise AssertionError(f"{len(dispatched(log))} dispatches, pid {os.getpid()}")


def test_the_driver_leases_as_its_workers_do(store: str) -> None:
    pacer = capacity.in_driver(settings(store))
    try:
        at_ns = [pacer.run(40, lambda at_ns: at_ns) for _ in range(30)]
    finally:
        pacer.stop()
    assert largest_window([(at, 40) for at in at_ns]) <= CAPACITY
    assert pacer.used() > 0

"""Processes of Spark jobs that lease their capacity from a real PostgreSQL: one limit, used well, whoever is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from headrace.kafka import free_port
from headrace_capacity.coordinator import Coordinator
from headrace_spark import capacity
from headrace_spark.checks import check
from headrace_spark.jobs.process import exit_code
from headrace_spark.settings import Settings
from tests.unit.spark.fakes import job
from tests.unit.spark.test_pacing import largest_window

CAPACITY = 400


def settings(url: str) -> Settings:
    return job(sink=url, state_dsn=url, path="staged", lease_store=url, resource="db", capacity=CAPACITY, max=40)


def spend(url: str, log: Path, seed: int) -> None:
    """What a Python worker does: one request after the other, until it is ended."""
    dice, pacer = random.Random(seed), capacity.in_every_process(settings(url))()
    with log.open("a", buffering=1) as file:
        while True:
            cost = dice.choice([5, 20, 40])
            pacer.run(cost, lambda at_ns, cost=cost: file.write(f"{at_ns} {cost} {os.getpid()}\n"))


def start(url: str, log: Path, seed: int) -> subprocess.Popen[bytes]:
    call = f"spend({url!r}, pathlib.Path({str(log)!r}), {seed})"
    code = f"import pathlib; from tests.conformance.test_spark_leases import spend; {call}"
    return subprocess.Popen([sys.executable, "-c", code])


def dispatched(log: Path) -> list[tuple[int, int, int]]:
    """(moment, cost, pid) of every whole line."""
    lines = [line.split() for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return sorted((int(at), int(cost), int(pid)) for at, cost, pid in lines)


def test_a_job_that_is_configured_otherwise_is_told_in_its_log(server: str) -> None:
    first = capacity.in_every_process(settings(server))()
    first.run(1, lambda _: None)
    with capture_logs() as logged:
        other = capacity.in_every_process(msgspec.structs.replace(settings(server), capacity=2 * CAPACITY))()
        until(lambda: any(line["event"] == "capacity configured otherwise" for line in logged), "it is logged")
        other.run(1, lambda _: None)
    first.stop()
    other.stop()
    (told,) = [line for line in logged if line["event"] == "capacity configured otherwise"]
    assert "shared_capacity is 400 there and 800 here, factor is 20 there and 40 here" in told["detail"]


def test_processes_share_one_capacity_and_what_a_killed_one_had_comes_back(server: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    check(settings(server))
    alive = [start(server, log, seed) for seed in range(3)]
    try:
        until(lambda: len({pid for _, _, pid in dispatched(log)}) == 3, "all three send")
        alive[0].kill()
        alive[0].wait(300)
        killed_ns = time.monotonic_ns()
        left = int(0.75 * CAPACITY)  # more than what two of three have as long as the third one is there
        until(lambda: busiest(log, killed_ns) >= left, "two of three use what the third one had")
    finally:
        for one in alive:
            one.kill()
            one.wait(300)
    assert busiest(log, 0) <= CAPACITY


def busiest(log: Path, since_ns: int) -> int:
    """The most that went out in a second that began after `since_ns`."""
    out = [(at, cost) for at, cost, _ in dispatched(log) if at >= since_ns]
    return largest_window(out) if out else 0


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 1200
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_the_driver_leases_as_its_workers_do(server: str) -> None:
    pacer = capacity.in_driver(settings(server))
    try:
        at_ns = [pacer.run(40, lambda at_ns: at_ns) for _ in range(30)]
    finally:
        pacer.stop()
    assert largest_window([(at, 40) for at in at_ns]) <= CAPACITY
    assert pacer.used() > 0


def coordinated(folder: Path, port: int, **changes: object) -> Settings:
    (folder / "token").write_text("secret")
    address = f"tcp://127.0.0.1:{port}"
    return job(lease_store=address, lease_token_file=str(folder / "token"), capacity=CAPACITY, max=40, **changes)


def test_a_job_waits_for_a_lease_store_that_is_not_there_yet(tmp_path: Path) -> None:
    port, made = free_port(), threading.Event()

    def make() -> int:
        pacer = capacity.in_driver(coordinated(tmp_path, port))
        made.set()
        try:
            return pacer.run(40, lambda at_ns: at_ns)
        finally:
            pacer.stop()

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(make)
        assert not made.wait(1.5)
        began_ns = time.monotonic_ns()
        coordinator = Coordinator("secret", port=port, cold=True).start()
        try:
            assert sent.result(240) >= began_ns
        finally:
            coordinator.stop()


def test_but_not_longer_than_for_a_store_that_is_down(tmp_path: Path) -> None:
    with pytest.raises(capacity.LeaseStoreDown) as caught:
        capacity.in_driver(coordinated(tmp_path, free_port(), sink_down_max_ms=1))
    assert exit_code(caught.value) == 1

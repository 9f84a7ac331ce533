"""The vectors of kind `scenario` (capacity.json): in words, so each has a test of its own, with the vector's figures.

CAP-107 stops a real process, CAP-108 runs real threads in real time; CAP-109 and CAP-111 run the real engine and lease
agents under a virtual clock, where 300 runs fit. Those with a Spark sink: `tests/spark/test_capacity_scenario.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import SharedResource
from tests.support.agent_sim import BROKEN, Build, Load, Process, Run
from tests.support.lease_sim import largest_window

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("HEADRACE_VECTORS", ROOT / "tests" / "vectors"))
SCENARIOS: dict[str, dict[str, Any]] = {
    vector["id"]: vector
    for vector in json.loads((FOLDER / "capacity.json").read_text())["vectors"]
    if vector["kind"] == "scenario" and "sink" not in vector["config"]
}
RUN_HERE = {"CAP-107", "CAP-108", "CAP-109", "CAP-111"}


def scenario(number: str) -> dict[str, Any]:
    if number not in SCENARIOS:
        pytest.skip(f"{number} is not among these vectors")
    return SCENARIOS[number]


def test_every_scenario_in_words_has_a_test_that_plays_it() -> None:
    played = {number for number in RUN_HERE if any(name.startswith(_test_of(number)) for name in globals())}
    assert played == RUN_HERE
    others = sorted(SCENARIOS.keys() - RUN_HERE)
    if others:
        pytest.skip(f"{', '.join(others)}: scenarios in words that no test plays yet")


def _test_of(number: str) -> str:
    return f"test_{number.lower().replace('-', '_')}_"


def test_cap_107_a_batch_picked_before_a_stop_is_not_raised_after_its_leases_have_ended() -> None:
    vector = scenario("CAP-107")
    lease, (_, picks, goes_on) = vector["config"]["lease"], vector["steps"]
    times = [lease["ttl_ms"], lease["margin_ms"], picks["t"], goes_on["t"]]
    command = [sys.executable, "-m", "tests.support.stopped_process", *map(str, times)]
    for _ in range(10):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            if (said := child.stdout.readline()) == "late\n":
                continue
            assert said == "picked\n"
            child.send_signal(signal.SIGSTOP)
            threading.Event().wait((goes_on["t"] - picks["t"]) / 1_000)
            child.send_signal(signal.SIGCONT)
            outcome = json.loads(child.stdout.readline())
        break
    assert child.returncode == 0
    assert outcome.pop("credit") >= 0, "what was charged for the picked batch came back"
    assert outcome == {
        "called": [],
        "buffer": ["a", "b", "c"],
        "attempts": [0, 0, 0],
        "used": 0,
        "inflight": 0,
        "target": 930,
        "capacity": 0,
    }


def test_cap_108_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = scenario("CAP-108")
    store = MemoryStore(lambda: time.monotonic_ns() // 1_000_000)
    resource = SharedResource(store, lease=LeaseConfig(**vector["config"]["lease"]), shared_capacity=1_000, factor=100)
    dispatched: list[tuple[int, int]] = []

    def write(batch: Batch) -> None:
        assert isinstance(batch.cost, int)
        dispatched.append((time.monotonic_ns() // 1_000_000, batch.cost))

    batcher = Batcher(resource, flush_interval_ms=25)
    watcher, wall, jump_s = Watcher(write), time.time, [0]
    monkeypatch.setattr(time, "time", lambda: wall() + jump_s[0])
    monkeypatch.setattr(time, "time_ns", lambda: int((wall() + jump_s[0]) * 1e9))
    batcher.enqueue_many([Operation(watcher, 20, None) for _ in range(1_000)])
    batcher.start()
    start_ns, capacities = time.monotonic_ns(), list[object]()
    for step, jump in zip(vector["steps"], (3_600, -7_200), strict=True):
        while time.monotonic_ns() - start_ns < step["t"] * 1_000_000:
            threading.Event().wait(0.02)
            if len(resource.held()) == resource.partitions or capacities:
                capacities.append(resource.capacity)
        jump_s[0] += jump
    threading.Event().wait(1.5)
    capacities.append(resource.capacity)
    assert set(capacities) == {1_000}
    assert batcher.stop(0) != []
    assert largest_window(dispatched) <= 1_000
    assert sum(cost for _, cost in dispatched) > 3_000


def refused(run: Run, process: Process, retry_after_ms: int) -> None:
    """The sink of one instance got 429: it tells its resource, and pauses all."""
    local_ms = run.now_ms + process.offset_ms
    assert process.core.limiter is not None
    process.core.limiter.throttled(1.0)
    process.core.pause(local_ms, retry_after_ms, scope="resource")


def test_cap_109_a_429_with_retry_after_pauses_all_and_halves_the_factor() -> None:
    vector = scenario("CAP-109")
    expect, retry_after_ms = vector["expect"], 2_000
    run = Run(0, Build(), Load(instances=3, costs=(10,), adaptive=True, length_ms=60_000), calm=True)
    first, *others = run.processes
    for process in run.processes:
        run.want(process, 10, 9_000)
    warm_ms = 4_000
    run.go(warm_ms)
    refused(run, first, retry_after_ms)
    run.go(warm_ms + vector["steps"][1]["t"])
    first_at = [at - warm_ms for at, who, _ in run.done if who == first.name and at > warm_ms]
    assert min(first_at) >= expect["A_raises_nothing_until_ms"]
    for other in others:
        until = [at - warm_ms for at, who, _ in run.done if who == other.name and warm_ms < at < warm_ms + 2_000]
        assert max(until, default=0) <= expect["others_stop_by_ms"]
    factors = factors_of(first)
    assert factors[0] == expect["capacity_factor_after_first_resume"] * 1_000
    assert factors[1:] == [600, 700, 800][: len(factors) - 1]
    begins_ms = run.now_ms
    refused(run, first, retry_after_ms)
    pauses = [event.val for event in first.core.take_events() if event.name == "pause"]
    assert pauses[-1] == expect["second_pause_ms"]
    run.go(begins_ms + 20_000)
    again = factors_of(first)
    assert again[0] == factors[-1] // 2
    assert [high - low for low, high in pairwise(again[:-1])] == [100] * (len(again) - 2)
    assert again[-1] == 1_000


def factors_of(process: Process) -> list[int]:
    return [event.val for event in process.core.take_events() if event.name == "factor"]


def cap_111_load() -> Load:
    config = scenario("CAP-111")["config"]
    names = ("partitions", "factor", "instances", "flush_interval_ms")
    return Load(costs=tuple(config["costs"]), **{name: config[name] for name in names})


def cap_111_worst(seed: int, build: Build) -> int:
    """Every third seed begins with the schedule that the vector gives for the last build."""
    return largest_window(Run(seed, build, cap_111_load(), late_reply=seed % 3 == 0).go().dispatched)


SEEDS = range(int(os.environ.get("HEADRACE_SEEDS", "300")))
"""As many as the vector says."""
PART = 30


@pytest.mark.parametrize("first", SEEDS[::PART])
def test_cap_111_the_correct_build_shows_no_window_above_the_limit(first: int) -> None:
    """The same seeds as for the broken builds, in parts."""
    seeds = [seed for seed in SEEDS if first <= seed < first + PART]
    assert [seed for seed in seeds if cap_111_worst(seed, Build()) > cap_111_load().limit] == []


@pytest.mark.parametrize("name", BROKEN)
def test_cap_111_each_broken_build_shows_a_window_above_the_limit(name: str) -> None:
    limit = scenario("CAP-111")["expect"]["each_build_shows_a_window_above"]
    assert any(cap_111_worst(seed, BROKEN[name]) > limit for seed in SEEDS)

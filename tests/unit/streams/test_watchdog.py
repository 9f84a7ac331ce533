"""When the watchdog barks: lag, and no progress in time that counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace_streams.watchdog import LATE_S, Stalled, Watchdog
from headrace_streams.worker import Worker

STALL_S = 60.0


@dataclass(eq=False)
class Runner:
    """What the watchdog sees of a runner."""

    topic: str = "t.routed"
    partition: int = 3
    step: str = "3 emissions"
    busy: bool = True
    progress_at: float = 0.0
    moved_at: float = 0.0
    next_offset: int | None = 8134
    waiting: int = 2
    starting: bool = False


@dataclass
class Partitions:
    """What it sees of a worker: a runner with lag, and one without."""

    runner: Runner = field(default_factory=Runner)
    other: Runner = field(default_factory=lambda: Runner(partition=2, step="2 engine"))
    flowing: bool = True
    records: int | None = 0
    began: float = field(default_factory=time.monotonic)
    heard: bool = True
    fetching: bool = True

    def owns(self) -> bool:
        return self.heard

    @property
    def runners(self) -> dict[tuple[str, int], Runner]:
        return {("t.routed", 3): self.runner, ("t.routed", 2): self.other}

    def lag(self, runner: Runner) -> int | None:
        return self.records if runner is self.runner else 0

    def describe_consumer(self, _: Runner, __: float) -> dict[str, Any]:
        return {"position": 8134}


@dataclass
class Rounds:
    """What goes round beside the partitions, until it stops."""

    ended: float = 0.0
    stopped: bool = False

    @property
    def round_at(self) -> float:
        self.ended += not self.stopped
        return self.ended


@pytest.fixture
def worker() -> Partitions:
    return Partitions()


@pytest.fixture
def ticks() -> Rounds:
    return Rounds()


@pytest.fixture
def watchdog(worker: Partitions, ticks: Rounds) -> Watchdog:
    return Watchdog(cast(Worker, worker), STALL_S, {"ticks": ticks})


def watch(watchdog: Watchdog, worker: Partitions, start: float, seconds: float) -> None:
    """A round a second, `start` seconds after the beginning."""
    for second in range(int(seconds)):
        watchdog.look(worker.began + start + second)


def test_lag_without_progress_is_a_stall_and_is_told(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records = 5
    watch(watchdog, worker, 0, STALL_S)
    with capture_logs() as told, pytest.raises(Stalled, match=r"t\.routed-3: no progress .* at 3 emissions"):
        watch(watchdog, worker, STALL_S, 3)
    line, _ = told
    assert (line["step"], line["marker"], line["waiting"], line["lag"], line["position"]) == (
        "3 emissions",
        8133,
        2,
        5,
        8134,
    )


def test_progress_within_a_chunk_is_no_stall_however_old_the_marker(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records = 5
    for turn in range(10):
        worker.runner.progress_at = float(turn)
        watch(watchdog, worker, turn * 50, 50)


def test_lag_that_has_just_begun_is_no_stall(watchdog: Watchdog, worker: Partitions) -> None:
    watch(watchdog, worker, 0, 10 * STALL_S)
    worker.records = 1
    watch(watchdog, worker, 10 * STALL_S, STALL_S)
    with pytest.raises(Stalled):
        watch(watchdog, worker, 11 * STALL_S, 3)


def test_a_partition_whose_lag_is_not_known_has_no_stall(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records = None
    watch(watchdog, worker, 0, 10 * STALL_S)


def test_a_restore_may_take_long_as_long_as_it_goes_on(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records, worker.runner.starting, worker.runner.step = None, True, "restoring"
    for turn in range(10):
        worker.runner.progress_at = float(turn)
        watch(watchdog, worker, turn * 50, 50)
    assert [told["step"] for told in watchdog.slow(worker.began + 500)] == ["restoring"]
    with pytest.raises(Stalled, match="at restoring"):
        watch(watchdog, worker, 500, STALL_S)


def test_ticks_that_are_not_written_any_more_are_a_stall_without_any_lag(
    watchdog: Watchdog, worker: Partitions, ticks: Rounds
) -> None:
    """A batch would stay open for ever, and nothing but its age would show it."""
    watch(watchdog, worker, 0, 3 * STALL_S)
    ticks.stopped = True
    assert watchdog.slow(worker.began + 3 * STALL_S) == []
    watch(watchdog, worker, 3 * STALL_S, STALL_S / 2 + 2)
    (told,) = watchdog.slow(worker.began + 3.5 * STALL_S + 2)
    assert told["part"] == "ticks"
    with pytest.raises(Stalled, match="ticks: no round"):
        watch(watchdog, worker, 3.5 * STALL_S + 2, STALL_S)


def test_a_fetcher_that_has_ended_is_a_stall_at_once(watchdog: Watchdog, worker: Partitions) -> None:
    """The lag stays what it was at the last fetch: none."""
    watch(watchdog, worker, 0, 5)
    worker.fetching = False
    with pytest.raises(Stalled, match="fetcher"):
        watch(watchdog, worker, 5, 1)


def test_time_in_which_the_process_did_not_run_does_not_count(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records = 5
    watch(watchdog, worker, 0, 30)
    watch(watchdog, worker, 3_600, STALL_S - 30 - LATE_S)
    with pytest.raises(Stalled):
        watch(watchdog, worker, 3_600 + STALL_S - 30 - LATE_S, 5)


def test_during_a_rebalance_the_progress_of_one_is_that_of_all(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records, worker.flowing = 5, False
    for turn in range(10):
        worker.other.progress_at = float(turn)
        watch(watchdog, worker, turn * 50, 50)
    with pytest.raises(Stalled):
        watch(watchdog, worker, 500, STALL_S)


def test_the_progress_of_another_partition_is_none_otherwise(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records = 5
    for second in range(int(STALL_S) + 1):
        worker.other.progress_at = float(second)
        watch(watchdog, worker, second, 1)
    with pytest.raises(Stalled):
        watch(watchdog, worker, STALL_S + 1, 2)


def test_while_the_broker_is_away_time_counts_a_tenth(watchdog: Watchdog, worker: Partitions) -> None:
    worker.records, worker.heard = 5, False
    watch(watchdog, worker, 0, 9 * STALL_S)
    with pytest.raises(Stalled):
        watch(watchdog, worker, 9 * STALL_S, 2 * STALL_S)


def test_half_a_stall_is_told_before_it_is_one_and_is_over_with_progress(
    watchdog: Watchdog, worker: Partitions
) -> None:
    worker.records = 5
    watch(watchdog, worker, 0, STALL_S / 2)
    assert watchdog.slow(worker.began + STALL_S / 2) == []
    watch(watchdog, worker, STALL_S / 2, 5)
    (told,) = watchdog.slow(worker.began + STALL_S / 2 + 5)
    assert (told["topic"], told["partition"], told["step"]) == ("t.routed", 3, "3 emissions")
    worker.runner.progress_at = worker.began + 40
    watch(watchdog, worker, STALL_S / 2 + 5, 5)
    assert watchdog.slow(worker.began + 45) == []

"""An idle partition gets a tick when something is due or ages by the clock, not for what is due much later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Record, Stage
from headrace_core.state import MemoryState, State
from headrace_streams.ticks import Ticker, wants_tick
from tests.support.counting_stage import CountingStage

DAY_MS = 86_400_000
AT_MS = 1_000_000


def applied(stage: Stage, *records: Record) -> MemoryState:
    state = MemoryState()
    for record in records:
        stage.apply(state, record, lambda _: None)
    return state


def raw(offset: int, topic: str, value: bytes) -> Record:
    return Record(0, offset, AT_MS, b"te", value, (("topic", topic.encode()), ("retain", b"1")))


def removed() -> tuple[Stage, State]:
    """An entity that came and went: its status is kept for a day."""
    stage = RegistrationStage(RegistrationConfig())
    return stage, applied(stage, raw(0, "te/device/a//", b'{"@type":"child-device"}'), raw(1, "te/device/a//", b""))


def test_a_kept_status_wants_its_tick_when_it_is_over_and_none_before() -> None:
    stage, state = removed()
    assert stage.next_due(state) == AT_MS + DAY_MS
    assert [wants_tick(stage, state, AT_MS + after) for after in (0, 500, DAY_MS - 1, DAY_MS)] == [False] * 3 + [True]


def test_a_pending_entity_and_an_open_batch_want_ticks_at_every_interval() -> None:
    registration = RegistrationStage(RegistrationConfig())
    pending = applied(registration, raw(0, "te/a/b/c/d/m/t", b"{}"))
    batching = BatchingStage(BatchingConfig(timeout=60_000))
    headers = (("kind", b"data"), ("entity", b"te/device/a//"), ("channel", b"m/t"))
    open_batch = applied(batching, Record(0, 0, AT_MS, b"te", b'{"v":1}', headers))
    assert wants_tick(registration, pending, AT_MS + 500)
    assert wants_tick(batching, open_batch, AT_MS + 500)


def test_where_nothing_waits_no_tick_is_wanted() -> None:
    stage = BatchingStage(BatchingConfig())
    assert not wants_tick(stage, MemoryState(), AT_MS)


def due(at_ms: int | None) -> Callable[[State], int | None]:
    """A stage's `next_due`, which is asked by way of the partition's reads and not of its database."""

    def next_due(reads: State) -> int | None:
        assert isinstance(reads, MemoryState)
        return at_ms

    return next_due


class Tickets:
    """An outlet that keeps the partitions it was given ticks for."""

    def __init__(self) -> None:
        self.partitions: list[int] = []

    async def tick(self, partition: int) -> None:
        self.partitions.append(partition)


@pytest.mark.parametrize(
    ("silent_s", "ahead_ms", "rooted", "expected"),
    [(10, -5000, True, [3]), (10, 5000, True, []), (0.01, -5000, True, []), (10, -5000, False, [])],
)
def test_the_clock_goes_on_from_the_marker_while_the_partition_is_silent(
    silent_s: float, ahead_ms: int, rooted: bool, expected: list[int]
) -> None:
    """A log whose clock is ahead of ours is due by its own clock, not by ours. Timelines have ticks of their own."""
    stage, clock = CountingStage(), int(time.time() * 1000) + 3_600_000
    due_ms = clock + 10_000 + ahead_ms
    stage.next_due = due(due_ms)  # type: ignore[method-assign]
    state: Any = SimpleNamespace(position=SimpleNamespace(marker=SimpleNamespace(clock=clock)))
    runner = SimpleNamespace(
        spec=SimpleNamespace(rooted=rooted), partition=3, stage=stage, state=state, reads=MemoryState(), idle=True,
        ready=True, moved_at=time.monotonic() - silent_s,
    )  # fmt: skip
    worker: Any = SimpleNamespace(runners={("raw", 3): runner}, lag=lambda _: 0)
    outlet: Any = Tickets()
    ticker = Ticker(worker, outlet, tick_interval_ms=500)
    asyncio.run(ticker._round(time.monotonic()))
    assert outlet.partitions == expected


def waiting(silent_s: float, now: float, due_in_ms: int | None, *, idle: bool = True) -> Any:
    """A partition that has been silent for so long, in which something is due in so many ms."""
    stage = CountingStage()
    due_ms = None if due_in_ms is None else int(time.time() * 1000) + 3_600_000 + due_in_ms
    stage.next_due = due(due_ms)  # type: ignore[method-assign]
    clock = int(time.time() * 1000) + 3_600_000 - int(silent_s * 1000)
    state = SimpleNamespace(position=SimpleNamespace(marker=SimpleNamespace(clock=clock)))
    return SimpleNamespace(
        spec=SimpleNamespace(rooted=True), partition=0, stage=stage, state=state, reads=MemoryState(), idle=idle,
        moved_at=now - silent_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("partitions", "expected_s"),
    [
        ([(0.4, -10)], 0.1),  # idle for the interval in 100 ms
        ([(9.0, 130)], 0.13),  # long idle, due in 130 ms
        ([(0.4, 60)], 0.1),
        ([(0.1, -10)], 0.25),  # a record may come before that is looked at again
        ([(9.0, None)], 0.25),
        ([(9.0, 5_000)], 0.25),
        ([(9.0, -10)], 0.25),  # has had its chance in this round
        ([(9.0, 5)], 0.025),  # many partitions do not make it spin
        ([(9.0, 130), (0.4, -10)], 0.1),
    ],
)
def test_the_next_round_is_when_the_first_partition_wants_its_tick(
    partitions: list[tuple[float, int | None]], expected_s: float
) -> None:
    """With looks every half interval only, a tick came up to 250 ms after its deadline."""
    now = time.monotonic()
    runners = {place: waiting(silent_s, now, due) for place, (silent_s, due) in enumerate(partitions)}
    worker: Any = SimpleNamespace(runners=runners, lag=lambda _: 0)
    pause_s = Ticker(worker, Tickets(), tick_interval_ms=500).pause_s(now)  # type: ignore[arg-type]
    assert pause_s == pytest.approx(expected_s, abs=0.003)


def test_a_partition_at_work_does_not_hurry_the_ticks() -> None:
    now = time.monotonic()
    worker: Any = SimpleNamespace(runners={0: waiting(0.4, now, -10, idle=False)}, lag=lambda _: 0)
    assert Ticker(worker, Tickets(), tick_interval_ms=500).pause_s(now) == 0.25  # type: ignore[arg-type]

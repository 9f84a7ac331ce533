"""Ticks: the owner moves the log's clock when a partition is idle and something waits for time (`streams.md` 4).

A partition that has been idle for an interval gets a tick if something in it is due, or if its stage follows the clock
while something waits (batching.md 4.5, registration.md 1). What is due much later, such as the end of a kept status,
gets its tick then, not before. The log's clock is taken to go on from the marker's as our own does, or to be ours if
that is later; if it is behind, the tick moves nothing and the next interval brings another.

One task per worker with absolute deadlines: it looks again when the first partition will want a tick, which is when
that has been idle for the interval and something in it is due; and twice an interval at least, as more may come.
A tick is late by a twentieth of the interval at most, and by the work of a round; rounds do not drift. The wall clock
decides only when to write a tick, never what it means (`batching.md` 4.5).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter

from headrace_core.stage import FollowsClock, Stage
from headrace_core.state import State
from headrace_streams.producer import Outlet
from headrace_streams.runner import PartitionRunner
from headrace_streams.worker import Worker, fatal

LOOKS, MOST_LOOKS = 2, 20
"""Rounds in an interval, at least and at most: each asks every idle partition."""
SURELY_S = 0.001
"""What is due in whole milliseconds is due then."""


class Ticker:
    """Writes ticks to `raw` for partitions that are read to their end."""

    def __init__(self, worker: Worker, outlet: Outlet, *, tick_interval_ms: int) -> None:
        self._worker = worker
        self._outlet = outlet
        self._interval_s = tick_interval_ms / 1000
        self.written: Counter[int] = Counter()
        """By partition."""
        self.round_at = time.monotonic()

    async def run(self) -> None:
        """Until cancelled. An error ends the process."""
        try:
            while True:
                pause_s = self.pause_s(self.round_at)
                await asyncio.sleep(self.round_at + pause_s - time.monotonic())
                await self._round(time.monotonic())
                self.round_at = time.monotonic()
        except Exception as error:
            fatal(error, "ticks")

    async def _round(self, now: float) -> None:
        runners = list(self._worker.runners.values())
        for partition in sorted({r.partition for r in runners if r.spec.rooted and self._needs_tick(r, now)}):
            await self._outlet.tick(partition)
            self.written[partition] += 1

    def pause_s(self, now: float) -> float:
        """How long to wait, at `now` (monotonic s), until a partition that is idle then may want a tick."""
        longest = self._interval_s / LOOKS
        waits = (self._wanted_in(r, now) + SURELY_S for r in list(self._worker.runners.values()) if r.spec.rooted)
        return max(min((w for w in waits if 0 < w < longest), default=longest), self._interval_s / MOST_LOOKS)

    def _wanted_in(self, runner: PartitionRunner, now: float) -> float:
        """Seconds from `now` on until the partition wants a tick, if no record comes; below 0: since then. Only what is
        within the next looks is worth a question to the state."""
        idle_in = runner.moved_at + self._interval_s - now
        if idle_in >= self._interval_s / LOOKS or not runner.idle:
            return math.inf
        if runner.state is None or runner.reads is None:
            return math.inf
        if isinstance(runner.stage, FollowsClock) and runner.stage.follows_clock(runner.reads):
            return idle_in
        due_ms = runner.stage.next_due(runner.reads)
        if due_ms is None:
            return math.inf
        clock_ms = log_ms(runner.state.position.marker.clock, now - runner.moved_at)
        return max(idle_in, (due_ms - clock_ms) / 1000)

    def _needs_tick(self, runner: PartitionRunner, now: float) -> bool:
        return (
            runner.idle
            and runner.state is not None
            and runner.reads is not None
            and now - runner.moved_at >= self._interval_s
            and self._worker.lag(runner) == 0
            and wants_tick(
                runner.stage, runner.reads, log_ms(runner.state.position.marker.clock, now - runner.moved_at)
            )
        )


def wants_tick(stage: Stage, state: State, log_ms: int) -> bool:
    """Whether an idle partition needs a tick at `log_ms` on the log's clock."""
    if isinstance(stage, FollowsClock) and stage.follows_clock(state):
        return True
    due_ms = stage.next_due(state)
    return due_ms is not None and due_ms <= log_ms


def log_ms(marker_ms: int, since_s: float) -> int:
    """What the log's clock is taken to be, `since_s` after the marker moved."""
    return max(marker_ms + int(since_s * 1000), int(time.time() * 1000))

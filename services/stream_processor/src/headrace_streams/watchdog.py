"""The watchdog: whatever makes no progress for too long ends the process (`streams.md` 5).

| what can stand still | how it is seen |
|---|---|
| a partition with records before it | it has lag, and gets to no other step |
| a partition that is being restored, or waits for the group | the same; there is no lag to go by yet |
| aiokafka's fetcher, which ends by an error that nobody hears of | its task is over; lag is that of the last fetch |
| ticks, of the log or of timelines: without lag nothing else would show it | their last round is too long ago |
| the loop itself | `/healthz` does not answer |

Judging by the marker and the lag of one moment alone raised false alarms:
- A large chunk on a starved machine. Seen: a tenth of a core, an outage's backlog of 1,500 records in one chunk, and no
  marker for a minute, while the engine was at work all the time. Progress is therefore that a runner gets to another
  step of `streams.md` 2, or through a turn of step 2. An await that never returns is none.
- The first record after a quiet minute: the marker is old, and for as long as its chunk takes there is lag. Only time
  with lag counts.
- A rebalance. It waits for the chunks under way, and no partition gets another before it is over; so while it lasts,
  the progress of one is that of all.
- A process that did not run itself (SIGSTOP, a suspended machine): only time in which the watchdog ran counts, for
  each of its rounds 3 s at most.
- A restore of many keys: reading and deriving is progress.
- A broker that is away. Seen: one stopped for a minute, and all workers ended just before it was back. Nobody makes
  progress then, and another start would not either; so time counts a tenth while the group does not answer heartbeats.

Before something has stalled, at half the time, `/healthz` fails and tells what.

Before it ends the process it logs what each runner and the consumer are at, a line per partition, with the processor
time of the process since the partition was last well: little of it tells a starved machine from a hanging one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import structlog

from headrace_streams.runner import PartitionRunner
from headrace_streams.worker import Worker, fatal

log = structlog.get_logger(__name__)

ROUND_S = 0.25
LATE_S = 3.0
UNHEARD_WEIGHT = 0.1


class Stalled(Exception):
    """Something has made no progress for too long."""


class GoesRound(Protocol):
    """What works in rounds for as long as the worker runs. `round_at`: when the last one ended, monotonic s."""

    round_at: float


class Well(NamedTuple):
    """When something was last well, in the watchdog's seconds and in processor seconds of the process."""

    at: float
    cpu: float
    progress_at: float


class Watchdog:
    """Looks at all runners of a worker, and at what goes `round` beside them, by name; a few times a second."""

    def __init__(self, worker: Worker, stall_s: float, round_: Mapping[str, GoesRound]) -> None:
        self._worker = worker
        self._stall_s = stall_s
        self._round = round_
        self._well: dict[PartitionRunner, Well] = {}
        self._rounds: dict[str, Well] = {}
        self._looked_at = time.monotonic()
        self._ran = 0.0

    async def run(self) -> None:
        """Until cancelled. A stall, or any other error, ends the process."""
        try:
            while True:
                await asyncio.sleep(ROUND_S)
                self.look(time.monotonic())
        except Exception as error:
            fatal(error, "watchdog")

    def look(self, now: float) -> None:
        """One round at `now` (monotonic s). Raises Stalled."""
        self._ran += min(now - self._looked_at, LATE_S) * (1 if self._worker.owns() else UNHEARD_WEIGHT)
        self._looked_at = now
        runners = list(self._worker.runners.values())
        newest = 0.0 if self._worker.flowing else max((runner.progress_at for runner in runners), default=0.0)
        self._well = {runner: self._last_well(runner, max(newest, runner.progress_at)) for runner in runners}
        self._rounds = {name: self._last_round(name, part.round_at) for name, part in self._round.items()}
        for runner, well in self._well.items():
            if self._ran - well.at > self._stall_s:
                self._tell(now)
                raise Stalled(f"{runner.topic}-{runner.partition}: no progress for {self._stall_s} s at {runner.step}")
        for name, well in self._rounds.items():
            if self._ran - well.at > self._stall_s:
                raise Stalled(f"{name}: no round for {self._stall_s} s")
        if not self._worker.fetching:
            raise Stalled("the fetcher has ended, its error is above")

    def slow(self, now: float) -> list[dict[str, Any]]:
        """What has made no progress for half the time of a stall, at `now` (monotonic s): partitions, other parts."""
        half = self._ran - self._stall_s / 2
        parts = [{"part": name, "since": round(self._ran - well.at, 1)} for name, well in self._rounds.items()
                 if well.at < half]  # fmt: skip
        return [*(describe(runner, now) for runner, well in self._well.items() if well.at < half), *parts]

    def _last_well(self, runner: PartitionRunner, progress_at: float) -> Well:
        known = self._well.get(runner)
        if known and progress_at <= known.progress_at and (runner.starting or self._worker.lag(runner)):
            return known
        return Well(self._ran, time.process_time(), progress_at)

    def _last_round(self, name: str, round_at: float) -> Well:
        known = self._rounds.get(name)
        return known if known and round_at <= known.progress_at else Well(self._ran, time.process_time(), round_at)

    def _tell(self, now: float) -> None:
        for runner, well in self._well.items():
            used = round(time.process_time() - well.cpu, 1)
            log.error("stalled", **describe(runner, now), well=round(self._ran - well.at, 1), cpu=used,
                      lag=self._worker.lag(runner), **self._worker.describe_consumer(runner, now))  # fmt: skip


def describe(runner: PartitionRunner, now: float) -> dict[str, Any]:
    """What a runner is at. Times are seconds ago."""
    return {
        "topic": runner.topic, "partition": runner.partition, "step": runner.step, "busy": runner.busy,
        "since": round(now - runner.progress_at, 1), "marker": runner.next_offset and runner.next_offset - 1,
        "marker_moved": round(now - runner.moved_at, 1), "waiting": runner.waiting,
    }  # fmt: skip

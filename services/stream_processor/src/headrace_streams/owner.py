"""What the owner of a timeline's partition writes to its commands: ticks, purges, clocks (timeline.md 3.4, 12.3, 16).

A `tick` is written when something is due and the partition has seen no record for 5 ms; what is due may also wait for
the next record. One is under way at most. One that came too early by the broker's clock changes nothing and is repeated
after 5 ms, doubling to 100 ms. A `purge` is written, also under load, when what has passed its window has done so for
5 s, so that one takes what many messages have left.

A `clock` has the offsets of those who send commands (`senders.py`). It is written when their median crosses the
setting, and every 30 s while the partition is degraded.

The wall clock decides only when to write a record, never what it means; one too many does no harm. When something is
due is asked again only after the partition has moved, since it costs a scan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from headrace_core.stage import JudgesClocks
from headrace_core.timeline.stage import TimelineStage
from headrace_streams.producer import Outlet
from headrace_streams.runner import PartitionRunner
from headrace_streams.ticks import log_ms
from headrace_streams.worker import Worker, fatal

log = structlog.get_logger(__name__)

IDLE_S = 0.005
LONGEST_PAUSE_S = 0.1
LOOK_S, LONG_LOOK_S = 0.005, 0.025
SOON_MS = 100
LOST_S = 10.0
"""A record that was written and not applied for so long is no longer waited for: the partition may have moved."""
PURGE_LOOK_S = 1.0
PURGE_AFTER_MS = 5_000
CLOCK_LOOK_S, CLOCK_AGAIN_S = 0.5, 30.0
TICK = (("kind", b"tick"),)
PURGE = (("tl-op", b"purge"),)


@dataclass(frozen=True, slots=True)
class Written:
    """A record of ours that is under way: its offset, and when it was written (monotonic s)."""

    offset: int
    at: float

    def awaited(self, next_offset: int, now: float) -> bool:
        return next_offset <= self.offset and now - self.at < LOST_S


NONE = Written(-1, 0.0)


@dataclass(slots=True)
class Place:
    """What is known of a partition. `asked`: the next offset for which `due_ms` holds; `early`: how many ticks in a row
    came too early by the broker's clock."""

    asked: int = -1
    due_ms: int | None = None
    tick: Written = NONE
    tick_due_ms: int = 0
    early: int = 0
    purge: Written = NONE
    purge_looked_at: float = 0.0
    clock: Written = NONE
    clock_looked_at: float = 0.0


class TimelineOwner:
    """Looks at the partitions of all timelines, many times a second."""

    def __init__(self, worker: Worker, outlet: Outlet) -> None:
        self._worker = worker
        self._outlet = outlet
        self._places: dict[PartitionRunner, Place] = {}
        self.round_at = time.monotonic()

    async def run(self) -> None:
        """Until cancelled. An error ends the process."""
        try:
            while True:
                soon = await self._round(time.monotonic())
                self.round_at = time.monotonic()
                await asyncio.sleep(LOOK_S if soon else LONG_LOOK_S)
        except Exception as error:
            fatal(error, "timelines")

    async def _round(self, now: float) -> bool:
        """Write what is wanted at `now` (monotonic s). Whether something is due soon."""
        runners = [one for one in self._worker.runners.values() if isinstance(one.stage, TimelineStage)]
        self._places = {runner: self._places.get(runner) or Place() for runner in runners}
        writes = []
        for runner, place in self._places.items():
            if self.wants_tick(runner, place, now):
                writes.append(self._tick(runner, place))
            elif self.wants_purge(runner, place, now):
                writes.append(self._purge(runner, place))
            elif offsets := self.clock_offsets(runner, place, now):
                writes.append(self._clock(runner, place, offsets))
        await asyncio.gather(*writes)
        return any(_soon(runner, place, now) for runner, place in self._places.items())

    async def _tick(self, runner: PartitionRunner, place: Place) -> None:
        due_ms = place.due_ms or 0
        offset = await self._outlet.own(runner.spec.ticks, runner.partition, TICK)
        place.tick, place.tick_due_ms = Written(offset, time.monotonic()), due_ms

    async def _purge(self, runner: PartitionRunner, place: Place) -> None:
        offset = await self._outlet.own(runner.spec.ticks, runner.partition, PURGE)
        place.purge = Written(offset, time.monotonic())

    async def _clock(self, runner: PartitionRunner, place: Place, offsets: Sequence[int]) -> None:
        log.warning("clocks of the senders and the log", stage=runner.spec.name, partition=runner.partition,
                    offsets_ms=list(offsets))  # fmt: skip
        told = (("tl-op", b"clock"), ("tl-args", msgspec.json.encode({"offsets": offsets})))
        offset = await self._outlet.own(runner.spec.ticks, runner.partition, told)
        place.clock = Written(offset, time.monotonic())

    def clock_offsets(self, runner: PartitionRunner, place: Place, now: float) -> list[int]:
        """What to write in a `clock` record at `now` (monotonic s), ms by sender; empty: nothing."""
        offset, state, reads, stage = runner.next_offset, runner.state, runner.reads, runner.stage
        if offset is None or state is None or reads is None or now - place.clock_looked_at < CLOCK_LOOK_S:
            return []
        place.clock_looked_at = now
        offsets = sorted(runner.senders.offsets(state.position.marker.clock).values())
        if not offsets or not isinstance(stage, JudgesClocks) or place.clock.awaited(offset, now):
            return []
        again = stage.degraded(reads) and now - place.clock.at > CLOCK_AGAIN_S
        return offsets if again or stage.crossed(reads, offsets) else []

    def wants_tick(self, runner: PartitionRunner, place: Place, now: float) -> bool:
        """Whether to write a tick at `now` (monotonic s)."""
        offset, state, reads = runner.next_offset, runner.state, runner.reads
        if offset is None or state is None or reads is None:
            return False
        if offset != place.asked:
            place.asked, place.due_ms = offset, runner.stage.next_due(reads)
        if place.due_ms is None or place.tick.awaited(offset, now) or not runner.idle:
            return False
        clock, since = state.position.marker.clock, now - runner.moved_at
        if place.tick is not NONE:
            place.early = place.early + 1 if clock < place.tick_due_ms else 0
            place.tick = NONE
        return since >= _pause_s(place.early) and place.due_ms <= log_ms(clock, since) and self._worker.lag(runner) == 0

    def wants_purge(self, runner: PartitionRunner, place: Place, now: float) -> bool:
        """Whether to write a purge at `now` (monotonic s)."""
        offset, state, reads, stage = runner.next_offset, runner.state, runner.reads, runner.stage
        if offset is None or state is None or reads is None or now - place.purge_looked_at < PURGE_LOOK_S:
            return False
        place.purge_looked_at = now
        if place.purge.awaited(offset, now) or not isinstance(stage, TimelineStage):
            return False
        purge_ms = stage.next_purge(reads)
        return purge_ms is not None and purge_ms + PURGE_AFTER_MS <= log_ms(
            state.position.marker.clock, now - runner.moved_at
        )


def _soon(runner: PartitionRunner, place: Place, now: float) -> bool:
    """Whether something is due within the next few looks, or overdue."""
    if place.due_ms is None or runner.state is None:
        return False
    return place.due_ms <= log_ms(runner.state.position.marker.clock, now - runner.moved_at) + SOON_MS


def _pause_s(early: int) -> float:
    """How long a partition is silent before a tick: 5 ms; after early ones 5, 10, 20 and so on to 100 ms."""
    return min(LONGEST_PAUSE_S, IDLE_S * (1 << min(16, max(0, early - 1))))

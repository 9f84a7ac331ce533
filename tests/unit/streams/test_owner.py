"""When the owner of a timeline's partition writes ticks and purges (timeline.md 3.4, 16)."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

from headrace_core.stage import Record
from headrace_core.state import MemoryState
from headrace_core.timeline.settings import Buffer, Settings
from headrace_core.timeline.source import SourceStage
from headrace_core.timeline.stage import TimelineStage
from headrace_streams.owner import CLOCK_AGAIN_S, LOST_S, PURGE_AFTER_MS, Place, TimelineOwner, Written
from headrace_streams.reads import Reads
from headrace_streams.senders import MOST_INSTANCES, SILENT_MS, Senders

SETTINGS = Settings(
    bucket_count=1, partitions=1, dedup_window_ms=1_000, buffer=Buffer(source="in", target="out", delay_ms=100)
)


class Partition:
    """A partition of a timeline whose log's clock is an hour ahead of ours, so that ours decides nothing."""

    def __init__(self) -> None:
        self.clock = self.start = int(time.time() * 1000) + 3_600_000
        self.stage, self.source = TimelineStage(SETTINGS, "t", buffer_fixed=True), SourceStage(SETTINGS, "t", "in")
        self.state = Reads(MemoryState())
        self.raw: Any = SimpleNamespace()
        """The database itself, which the owner asks for its position and nothing else."""
        self.offset = self.sent = 0
        self.lag = 0
        self.runner: Any = SimpleNamespace(
            stage=self.stage,
            state=self.raw,
            reads=self.state,
            idle=True,
            next_offset=0,
            moved_at=0.0,
            senders=Senders(),
        )
        worker: Any = SimpleNamespace(lag=lambda _: self.lag)
        self.owner, self.place = TimelineOwner(worker, Any), Place()

    def apply(self, at: int, now: float, headers: tuple[tuple[str, bytes], ...] = (("kind", b"tick"),)) -> None:
        """A record of the log is applied."""
        self.stage.apply(self.state, Record(0, self.offset, at, None, b"", headers), lambda _: None)
        self._applied(at, now)

    def arrive(self, at: int, now: float) -> None:
        """A record of the source, due 100 ms later."""
        commands: list[Any] = []
        self.source.apply(MemoryState(), Record(0, self.sent, at, b"k", b"v"), commands.append)
        self.sent += 1
        [command] = commands
        record = Record(0, self.offset, at, command.key, command.value, command.headers)
        self.stage.apply(self.state, record, lambda _: None)
        self._applied(at, now)

    def _applied(self, at: int, now: float) -> None:
        self.offset += 1
        self.clock = max(self.clock, at)
        self.raw.position = SimpleNamespace(marker=SimpleNamespace(clock=self.clock))
        self.runner.next_offset, self.runner.moved_at = self.offset, now

    def ticks(self, now: float) -> bool:
        return self.owner.wants_tick(self.runner, self.place, now)

    def ticked(self, now: float) -> None:
        """What the owner notes when it has written one."""
        self.place.tick, self.place.tick_due_ms = Written(self.offset, now), self.place.due_ms or 0

    def sends(self, instance: bytes, behind_ms: int, times: int = 8) -> None:
        """Commands of an instance whose clock is so far behind the log's."""
        sent = (("tl-instance", instance), ("tl-sent-at", b"%d" % (self.clock - behind_ms)))
        self.runner.senders.seen([Record(0, 0, self.clock, None, b"", sent)] * times)

    def clocks(self, now: float) -> list[int]:
        self.place.clock_looked_at = -1e9
        return self.owner.clock_offsets(self.runner, self.place, now)

    def purges(self, now: float) -> bool:
        self.place.purge_looked_at = -1e9
        return self.owner.wants_purge(self.runner, self.place, now)


def test_a_tick_is_written_when_something_is_due_and_the_log_is_silent() -> None:
    one = Partition()
    assert not one.ticks(0.0)
    one.arrive(one.start, 50.0)
    assert [one.ticks(50.0 + after) for after in (0.0, 0.05, 0.099)] == [False] * 3
    assert one.ticks(50.1)
    one.lag = 1
    assert not one.ticks(50.1)
    one.lag, one.runner.idle = 0, False
    assert not one.ticks(50.1)


def test_what_is_overdue_waits_until_no_record_came_for_five_milliseconds() -> None:
    one = Partition()
    one.arrive(one.start - 500, 50.0)
    assert [one.ticks(50.0 + after) for after in (0.0, 0.004, 0.005)] == [False, False, True]


def test_one_tick_is_under_way_unless_it_seems_lost() -> None:
    one = Partition()
    one.arrive(one.start, 50.0)
    assert one.ticks(50.2)
    one.ticked(50.2)
    assert not one.ticks(51.0)
    assert one.ticks(50.2 + LOST_S)


def test_a_tick_that_came_too_early_is_repeated_after_pauses_that_double() -> None:
    one = Partition()
    one.arrive(one.start, 50.0)
    assert one.ticks(50.2)
    now, pauses = 50.2, []
    for _ in range(7):
        one.ticked(now)
        one.apply(one.start + 1, now)  # the broker's clock stands nearly still
        one.raw.position.marker.clock = one.start + 99
        pauses.append(next(ms for ms in range(1_000) if one.ticks(now + ms / 1000 + 1e-6)))
        now += pauses[-1] / 1000
    assert pauses == [5, 10, 20, 40, 80, 100, 100]
    one.ticked(now)
    one.apply(one.start + 100, now)
    assert not one.ticks(now + 1)
    one.arrive(one.start - 500, now)
    assert one.ticks(now + 0.006)


def test_more_than_a_record_may_put_out_is_fetched_by_the_next_tick_without_a_longer_pause() -> None:
    one = Partition()
    for _ in range(1_001):
        one.arrive(one.start, 50.0)
    assert one.ticks(50.2)
    one.ticked(50.2)
    one.apply(one.start + 200, 50.2)
    assert [one.ticks(50.2 + after) for after in (0.004, 0.006)] == [False, True]


def test_a_purge_is_written_when_something_has_passed_its_window_for_a_while_also_under_load() -> None:
    one = Partition()
    one.arrive(one.start, 50.0)
    assert not one.purges(1e6)
    one.apply(one.start + 100, 50.0)  # released, a tombstone for 1,000 ms
    wait = (1_000 + PURGE_AFTER_MS) / 1000
    one.runner.idle, one.lag = False, 5
    assert [one.purges(50.0 + wait + more) for more in (-0.01, 0.01)] == [False, True]
    one.place.purge = Written(one.offset, 50.0 + wait)
    assert not one.purges(50.0 + wait + 1)
    one.apply(one.start + 100 + 1_000, 60.0, (("tl-op", b"purge"),))
    assert one.stage.gauges(one.state)["tombstones"] == 0
    assert not one.purges(1e6)


def test_a_partition_that_is_not_restored_is_left_alone() -> None:
    one = Partition()
    one.arrive(one.start - 500, 50.0)
    one.runner.next_offset = None
    assert not one.ticks(60.0)
    assert not one.purges(1e6)
    assert one.clocks(60.0) == []


def clock(offsets: list[int]) -> tuple[tuple[str, bytes], ...]:
    return ("tl-op", b"clock"), ("tl-args", json.dumps({"offsets": offsets}).encode())


def test_a_clock_is_written_when_the_median_of_the_senders_crosses_the_setting_and_again_while_degraded() -> None:
    one = Partition()
    one.apply(one.start, 50.0)
    one.sends(b"a", 5_000, times=7)
    assert one.clocks(51.0) == []  # seven slow commands say nothing
    one.sends(b"a", 2_000, times=1)
    assert one.clocks(51.0) == [2_000]
    one.sends(b"b", -10)
    one.sends(b"c", 3)
    assert one.clocks(51.0) == []
    one.sends(b"b", -9_000)
    one.sends(b"c", -2_500)
    assert one.clocks(51.0) == [-9_000, -2_500, 2_000]

    one.place.clock = Written(one.offset, 51.0)
    assert one.clocks(51.1) == []  # under way
    one.apply(one.start + 1, 51.2, clock([-9_000, -2_500, 2_000]))
    assert one.stage.degraded(one.state)
    assert [bool(one.clocks(51.0 + after)) for after in (CLOCK_AGAIN_S - 1, CLOCK_AGAIN_S + 1)] == [False, True]
    one.sends(b"c", 0)
    assert one.clocks(52.0) == [-9_000, 0, 2_000]
    one.apply(one.start + 2, 52.1, clock([-9_000, 0, 2_000]))
    assert not one.stage.degraded(one.state)
    assert one.clocks(1e6) == []


def test_who_has_gone_is_no_sender_any_more_and_what_cannot_be_read_is_none() -> None:
    one = Partition()
    one.apply(one.start, 50.0)
    one.sends(b"a", 5_000)
    for sent in (b"", b"-1", b"x", b"9" * 40):
        headers = (("tl-instance", b"odd"), ("tl-sent-at", sent))
        one.runner.senders.seen([Record(0, 0, one.clock, None, b"", headers)] * 8)
    assert one.runner.senders.offsets(one.clock) == {"a": 5_000}
    assert one.runner.senders.offsets(one.clock + SILENT_MS) == {}
    for number in range(MOST_INSTANCES):
        one.sends(b"%d" % number, 0)
    assert "a" not in one.runner.senders.offsets(one.clock)

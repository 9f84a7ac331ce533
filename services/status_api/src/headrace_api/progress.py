"""How far the replica is, as one immutable value: what readiness, health, status and metrics are made from."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

STALLED_S = 60.0
STARTING = "starting"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """`offset` is the next one of the changelog, `end` its end as last heard, `target` its end at start.

    `source` is the offset in `raw` up to which the state has everything; -1: nothing yet.
    """

    offset: int
    end: int
    target: int
    source: int

    @property
    def lag(self) -> int:
        """Records of the changelog that are not in the replica."""
        return max(0, self.end - self.offset)


@dataclass(frozen=True, slots=True)
class Progress:
    """`reason` says why the replica is not ready. Times are of time.monotonic()."""

    reason: str = STARTING
    topic: str = ""
    partitions: tuple[PartitionProgress, ...] = ()
    kafka_up: bool = False
    alive_at: float = field(default_factory=time.monotonic)
    moved_at: float = field(default_factory=time.monotonic)
    counts: tuple[tuple[str, int], ...] = ()

    @property
    def ready(self) -> bool:
        """Caught up with the ends that the partitions had at start."""
        return bool(self.partitions) and all(p.offset >= p.target for p in self.partitions)

    @property
    def starting(self) -> bool:
        """Not ready, but nothing stands in the way."""
        return not self.ready and (bool(self.partitions) or self.reason == STARTING)

    @property
    def why_not_ready(self) -> str:
        """For people; empty when ready."""
        if self.ready:
            return ""
        if not self.partitions:
            return self.reason
        behind = sum(max(0, p.target - p.offset) for p in self.partitions)
        return f"{behind} records of {self.topic} are to be read; {self.reason}".rstrip("; ")

    def trouble(self, now: float) -> str:
        """Why the process is not healthy at `now` (time.monotonic()); empty when it is."""
        if now - self.alive_at > STALLED_S:
            return f"the consumer has been stuck for {now - self.alive_at:.0f} s"
        behind = sum(p.lag for p in self.partitions)
        if behind and self.kafka_up and now - self.moved_at > STALLED_S:
            return f"{behind} records behind and no progress for {now - self.moved_at:.0f} s"
        return ""

"""Rounds: the same count of new messages again and again, each written while the process that takes them is stopped.

Contestants that are compared take turns, round by round, so that whatever else the machine does meets all of them. The
first round of each is a warm-up (caches, the JVM's compiler) and is not part of the figures. A round ends with the last
commit of the last partition: for our worker the time in the last marker of its changelogs, for a consumer group the
moment at which its committed offsets are seen at the end of the input.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.streams.process import Measured
from bench.streams.traffic import partitions

SETTLE_S = 0.5
ROUND_S = 300.0
POLL_S = 0.2


@dataclass(frozen=True)
class Round:
    """`seconds` of wall time and `cpu_s` of processor time for `count` messages."""

    count: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Messages/s."""
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time a message."""
        return self.cpu_s / self.count * 1e6


@dataclass
class Contestant:
    """A process and its rounds. `fill` writes a round's messages and returns how many; `progress` tells how many of all
    messages are done with; `ended`: wall time (s) of the last commit, for which now is taken without it.
    """

    name: str
    process: Measured
    fill: Callable[[], int]
    progress: Callable[[], int]
    ended: Callable[[], float] = time.time
    rounds: list[Round] = field(default_factory=list)
    _total: int = 0

    def warm_up(self) -> None:
        """A round that does not count."""
        self._total = self.progress()
        self._round()

    def run(self) -> None:
        """A round."""
        self.rounds.append(self._round())

    def _round(self) -> Round:
        self.process.hold()
        messages = self.fill()
        self._total += messages
        time.sleep(SETTLE_S)
        cpu, started = self.process.cpu_s, time.time()
        self.process.let_go()
        self.process.until(self._done, f"{messages} messages", ROUND_S, every_s=POLL_S)
        cpu = self.process.cpu_s - cpu
        return Round(messages, self.ended() - started, cpu)

    def _done(self) -> bool:
        return self.progress() >= self._total


def contest(contestants: Sequence[Contestant], rounds: int) -> None:
    """So many rounds of each, in turns, after one each to warm up."""
    for one in contestants:
        one.warm_up()
    for _ in range(rounds):
        for one in contestants:
            one.run()


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Least, median and most of rate and CPU, and all of them in their order."""
    rates, costs = [r.rate for r in rounds], [r.cpu_us for r in rounds]
    return {
        "messages_a_round": rounds[0].count,
        "rate_min": round(min(rates)), "rate_median": round(statistics.median(rates)), "rate_max": round(max(rates)),
        "cpu_us_min": round(min(costs), 2), "cpu_us_median": round(statistics.median(costs), 2),
        "cpu_us_max": round(max(costs), 2),
        "rates": [round(rate) for rate in rates], "cpu_us": [round(cost, 2) for cost in costs],
    }  # fmt: skip


class Ends:
    """Ends of topics and commits of groups, seen from outside."""

    def __init__(self, kafka: str, group: str = "bench") -> None:
        self._consumer = Consumer({
            "bootstrap.servers": kafka, "group.id": group, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "isolation.level": "read_uncommitted", "log_level": 0,
        })  # fmt: skip

    def end(self, topic: str) -> int:
        """Sum of the end offsets."""
        return sum(self._consumer.get_watermark_offsets(tp, timeout=60)[1] for tp in partitions(topic))

    def committed(self, topic: str) -> int:
        """Sum of the offsets that the group has committed."""
        return sum(max(0, tp.offset) for tp in self._consumer.committed(partitions(topic), timeout=60))

    def last_written(self, topic: str) -> float:
        """Wall time (s) of the newest of the last records of all partitions."""
        newest = 0
        for tp in partitions(topic):
            _, high = self._consumer.get_watermark_offsets(tp, timeout=60)
            if high:
                self._consumer.assign([TopicPartition(topic, tp.partition, high - 1)])
                message = self._consumer.poll(60)
                if message is not None and message.error() is None:
                    newest = max(newest, message.timestamp()[1])
        self._consumer.unassign()
        return newest / 1000

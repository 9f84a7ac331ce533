"""Rounds: the same count of new messages again and again, each time written while the process is stopped.

The first round is a warm-up (caches, the JVM's compiler) and is not part of the figures. A round ends with the last
commit of the last partition: for our worker the time in the last marker of its changelogs, for a consumer group the
moment at which its committed offsets are seen at the end of the input.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.streams.process import Measured, Streams
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


def summary(rounds: list[Round]) -> dict[str, Any]:
    """Least, median and most of rate and CPU."""
    rates, costs = sorted(r.rate for r in rounds), sorted(r.cpu_us for r in rounds)
    return {
        "messages_a_round": rounds[0].count, "rounds": len(rounds),
        "rate_min": round(rates[0]), "rate_median": round(statistics.median(rates)), "rate_max": round(rates[-1]),
        "cpu_us_min": round(costs[0], 2), "cpu_us_median": round(statistics.median(costs), 2),
        "cpu_us_max": round(costs[-1], 2),
    }  # fmt: skip


def rounds(
    process: Measured, fill: Callable[[], int], finished: Callable[[], bool], ended: Callable[[], float], count: int
) -> list[Round]:
    """`count` rounds after one to warm up. `fill` writes a round's input; `ended`: wall time (s) of the last commit."""
    done = []
    for number in range(count + 1):
        process.hold()
        messages = fill()
        time.sleep(SETTLE_S)
        cpu, started = process.cpu_s, time.time()
        process.let_go()
        process.until(finished, f"{messages} messages", ROUND_S, every_s=POLL_S)
        cpu = process.cpu_s - cpu
        if number:
            done.append(Round(messages, ended() - started, cpu))
    return done


class Ends:
    """Ends of topics and commits of groups, seen from outside."""

    def __init__(self, kafka: str, group: str = "bench") -> None:
        self._consumer = Consumer({
            "bootstrap.servers": kafka, "group.id": group, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "isolation.level": "read_uncommitted",
        })  # fmt: skip

    def end(self, topic: str) -> int:
        """Sum of the end offsets."""
        return sum(self._consumer.get_watermark_offsets(tp, timeout=20)[1] for tp in partitions(topic))

    def committed(self, topic: str) -> int:
        """Sum of the offsets that the group has committed."""
        return sum(max(0, tp.offset) for tp in self._consumer.committed(partitions(topic), timeout=20))

    def last_written(self, topic: str) -> float:
        """Wall time (s) of the newest of the last records of all partitions."""
        newest = 0
        for tp in partitions(topic):
            _, high = self._consumer.get_watermark_offsets(tp, timeout=20)
            if high:
                self._consumer.assign([TopicPartition(topic, tp.partition, high - 1)])
                message = self._consumer.poll(20)
                if message is not None and message.error() is None:
                    newest = max(newest, message.timestamp()[1])
        self._consumer.unassign()
        return newest / 1000

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


def worker_rounds(
    worker: Streams, ends: Ends, prefix: str, stage: str, source: str, fill: Callable[[], int], count: int
) -> list[Round]:
    """Rounds of our worker with one stage, which reads the topic `source`."""

    def finished() -> bool:
        return worker.applied(stage) >= total[0]

    total = [ends.end(prefix + source)]

    def filled() -> int:
        messages = fill()
        total[0] = ends.end(prefix + source)
        return messages

    return rounds(worker, filled, finished, lambda: ends.last_written(f"{prefix}{stage}.changelog"), count)


def group_rounds(process: Measured, at: Callable[[], int], fill: Callable[[], int], count: int) -> list[Round]:
    """Rounds of another process; `at()` tells how many of all messages it is done with."""
    total = [at()]

    def filled() -> int:
        messages = fill()
        total[0] += messages
        return messages

    return rounds(process, filled, lambda: at() >= total[0], time.time, count)

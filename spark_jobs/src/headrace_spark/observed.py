"""What Spark tells of a micro-batch, as numbers (spark-writer.md 9, groups "query" and "lag").

Offsets behind latest count what the topic has after the micro-batch, per partition. The lag in seconds is how long that
takes at the latest rate of processing; nothing to do is 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

PREFIX: Final = "headrace_spark_"


class Observed(msgspec.Struct, frozen=True):
    """The latest micro-batch with input. `behind` by (topic, partition); `phases` in seconds; `ended` as Unix time."""

    input_rate: float = 0.0
    processed_rate: float = 0.0
    phases: dict[str, float] = {}
    behind: dict[tuple[str, str], int] = {}
    ended: float = 0.0

    @property
    def lag_seconds(self) -> float:
        """See above."""
        total = sum(self.behind.values())
        return total / self.processed_rate if total and self.processed_rate else 0.0

    def collect(self) -> Iterator[Metric]:
        """Metric families."""
        behind = list(self.behind.values()) or [0]
        for name, text, value in (
            ("input_rows_per_second", "rate of input of the latest micro-batch", self.input_rate),
            ("processed_rows_per_second", "rate of processing of the latest micro-batch", self.processed_rate),
            ("last_commit_time_seconds", "when the latest micro-batch with input ended, Unix time", self.ended),
            (
                "offsets_behind_latest_max",
                "offsets that the topic has after it, largest of the partitions",
                max(behind),
            ),
            ("offsets_behind_latest_mean", "the same, mean", sum(behind) / len(behind)),
            ("lag_seconds", "how long the backlog takes at the latest rate", self.lag_seconds),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        parts = GaugeMetricFamily(PREFIX + "offsets_behind_latest", "offsets after it", labels=["topic", "partition"])
        for (topic, partition), number in sorted(self.behind.items()):
            parts.add_metric([topic, partition], number)
        yield parts
        phases = GaugeMetricFamily(PREFIX + "batch_phase_seconds", "phases of the latest micro-batch", labels=["phase"])
        for phase, seconds in sorted(self.phases.items()):
            phases.add_metric([phase], seconds)
        yield phases


def observed(progress: Mapping[str, Any], now: float) -> Observed:
    """From the JSON of Spark's StreamingQueryProgress; `now` in Unix seconds."""
    sources = progress.get("sources") or [{}]
    ends, latest = (_offsets(sources[0].get(name)) for name in ("endOffset", "latestOffset"))
    return Observed(
        input_rate=_rate(progress.get("inputRowsPerSecond")),
        processed_rate=_rate(progress.get("processedRowsPerSecond")),
        phases={name: value / 1000 for name, value in (progress.get("durationMs") or {}).items()},
        behind={place: max(0, offset - ends.get(place, 0)) for place, offset in latest.items()},
        ended=now,
    )


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    found = json.loads(value) if isinstance(value, str) else value
    return {(topic, number): at for topic, parts in (found or {}).items() for number, at in parts.items()}


def _rate(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

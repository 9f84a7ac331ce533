"""Metrics of lanes (packing.md 7), by topic and partition, of this process: what was packed and what became of it.

Numbers of a micro-batch are added when it is committed, so a repeat of it counts once. What is skipped was sent before
a repeat. Rows wait for their time to be complete, and wait on until something else fills their request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace_spark.observed import PREFIX

_SUMS: Final = {
    "requests": "requests of the lane",
    "rows": "rows in them",
    "late": "rows that came after later ones had gone out",
    "cut": "groups that are larger than a request",
    "unsplittable": "rows whose id has no subject and metric",
    "untimed": "rows without a time",
    "retries": "tries of a request after the first",
    "skipped": "requests that were sent before their micro-batch was repeated",
    "rejected": "requests whose content was refused",
    "closing_seconds": "seconds that rows waited until they were packed into a request, in sum over the rows",
}
Place = tuple[str, int]


class LaneNumbers:
    """`max_rows` is what a full request has."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._sums: dict[Place, dict[str, float]] = {}
        self._waiting: dict[Place, int] = {}

    def add(self, place: Place, numbers: Mapping[str, float]) -> None:
        """What a micro-batch adds to a lane, by the names above."""
        with self._lock:
            own = self._sums.setdefault(place, dict.fromkeys(_SUMS, 0))
            for name, number in numbers.items():
                own[name] += number

    def wait(self, place: Place, rows: int) -> None:
        """So many rows of the lane wait now."""
        with self._lock:
            self._waiting[place] = rows

    def collect(self) -> Iterator[Metric]:
        """Metric families."""
        with self._lock:
            sums = {place: dict(own) for place, own in sorted(self._sums.items())}
            waiting = sorted(self._waiting.items())
        for name, text in _SUMS.items():
            counter = CounterMetricFamily(f"{PREFIX}lane_{name}", text, labels=["topic", "partition"])
            for (topic, partition), own in sums.items():
                counter.add_metric([topic, str(partition)], own[name])
            yield counter
        fill = GaugeMetricFamily(
            PREFIX + "lane_fill_ratio", "rows by what full requests have", labels=["topic", "partition"]
        )
        for (topic, partition), own in sums.items():
            if own["requests"]:
                fill.add_metric([topic, str(partition)], own["rows"] / (own["requests"] * self._max_rows))
        yield fill
        kept = GaugeMetricFamily(
            PREFIX + "lane_waiting_rows", "rows that wait in the lane", labels=["topic", "partition"]
        )
        for (topic, partition), rows in waiting:
            kept.add_metric([topic, str(partition)], rows)
        yield kept

"""What the lease store says of the job's resource, for its metrics (spark-writer.md 9, group "capacity").

Without a store all of the capacity is granted to this job alone, and what it sends is what is used. With one the
store is asked at a scrape, by a client of its own, and at most once a second; while it does not answer the gauges are
away, not wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from headrace_core.capacity.protocol import Capacity, StoreStatus
from headrace_core.errors import HeadraceError
from headrace_spark.observed import PREFIX

FRESH_S: Final = 1.0
_TEXTS: Final = {
    "capacity_granted": "units per second that the store granted to all owners",
    "capacity_used": "units per second that their partitions in use are worth; without a store what went out",
    "capacity_owners": "lease clients that share the resource",
    "capacity_waiting": "partitions wanted beyond the shares",
    "capacity_pause_seconds": "how long all of them are paused for",
}


class Leasing:
    """`ask` asks the store and may raise; None: there is none, and `capacity` is the job's alone, of which `used` went
    out in the last second."""

    def __init__(
        self,
        ask: Callable[[], StoreStatus] | None,
        capacity: int,
        used: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._capacity, self._sent, self._clock = ask, capacity, used, clock
        self._lock = threading.Lock()
        self._found: StoreStatus | None = None
        self._asked = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """Metric families."""
        for name, value in self._values().items():
            yield GaugeMetricFamily(PREFIX + name, _TEXTS[name], value=value)

    def _values(self) -> dict[str, float]:
        if self._ask is None:
            return {"capacity_granted": self._capacity, "capacity_used": self._sent(), "capacity_owners": 1}
        found = self._status()
        if found is None:
            return {}
        return {
            "capacity_granted": _units(found.granted),
            "capacity_used": _units(found.used),
            "capacity_owners": len(found.owners),
            "capacity_waiting": found.waiting,
            "capacity_pause_seconds": found.pause_ms / 1000,
        }

    def _status(self) -> StoreStatus | None:
        with self._lock:
            if self._ask is not None and self._clock() - self._asked >= FRESH_S:
                try:
                    self._found = self._ask()
                except HeadraceError:
                    self._found = None
                self._asked = self._clock()
            return self._found


def _units(found: Capacity) -> float:
    return float(sum(found.values()) if isinstance(found, dict) else found)
